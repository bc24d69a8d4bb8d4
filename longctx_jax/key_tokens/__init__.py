"""What an evaluator found, in memory and on disk."""
