"""How well a language model uses a long context: LongPPL and LongCE in JAX."""
