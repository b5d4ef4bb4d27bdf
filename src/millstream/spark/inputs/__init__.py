"""Inputs on Spark: what opens each kind of input as a DataFrame, and what reads each format."""
