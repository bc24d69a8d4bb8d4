"""Models on key tokens."""
