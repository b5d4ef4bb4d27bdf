"""Processing on Spark: session, sources, decoding, windows, joins, and the queries that an application declares."""
