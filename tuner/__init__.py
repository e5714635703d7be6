"""Finds the fastest legal way to lay a Mixture-of-Experts model out on GPUs under SGLang."""
