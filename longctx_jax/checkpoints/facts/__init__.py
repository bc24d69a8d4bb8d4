"""config.json to `ModelConfig` and back."""
