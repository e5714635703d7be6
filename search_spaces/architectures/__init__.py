"""The model classes of SGLang, as lists of what they build for each layer."""
