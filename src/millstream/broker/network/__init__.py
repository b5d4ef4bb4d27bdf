"""The clients' side of the broker: who may connect, frames in, answers out."""
