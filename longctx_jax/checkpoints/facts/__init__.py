"""config.json to `ModelConfig` and back: families, RoPE, the allow-list."""
