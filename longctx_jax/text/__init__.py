"""Documents, their tokens, and offsets that are proved."""
