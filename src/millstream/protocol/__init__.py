"""Kafka's protocol as bytes: message codecs generated from Kafka's own definitions, and the record batch format."""
