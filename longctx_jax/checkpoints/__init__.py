"""Weights in and out: Hugging Face, GGUF, Orbax."""
