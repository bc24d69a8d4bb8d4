"""What a config takes of TPUs: bytes, operations, collectives, time."""
