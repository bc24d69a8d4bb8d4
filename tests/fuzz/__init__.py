"""Random sequences of commands on tiny models, against plain arithmetic."""
