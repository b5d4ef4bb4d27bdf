"""Databases to topics: a consistent snapshot first, then the database's own log of changes."""
