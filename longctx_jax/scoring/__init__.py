"""From documents to key tokens."""
