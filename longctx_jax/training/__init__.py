"""LongCE and CE."""
