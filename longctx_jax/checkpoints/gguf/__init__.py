"""GGUF files: header, facts, tensors, tokenizer."""
