"""The decoder: config, RoPE, attention, layers, checkpoints."""
