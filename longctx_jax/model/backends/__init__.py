"""Attention, one module for each kind of machine."""
