"""A simulated SGLang server: its arguments, its deaths and its HTTP surface, with invented but anchored times.

It exists so that the tuner's client, launcher and diagnosis can be exercised, and a search tried out, where
there is no GPU. Whatever it says of speed is a model's word, and it says so itself everywhere.
"""
