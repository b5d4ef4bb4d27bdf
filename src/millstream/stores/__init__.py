"""Stores: where tables that queries keep are written, each batch exactly once, and read."""
