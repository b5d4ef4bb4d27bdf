"""Typed helpers for Python on the Kafka side: topics, lag, status, reading, writing. Nothing here needs a private API."""
