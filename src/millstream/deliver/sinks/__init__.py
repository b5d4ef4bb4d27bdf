"""Sinks by kind: each module has `connect(delivery, kafka)`."""
