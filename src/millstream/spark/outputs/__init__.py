"""Outputs on Spark: what gives the rows of a query to each kind of output."""
