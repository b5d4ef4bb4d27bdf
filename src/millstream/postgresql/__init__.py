"""PostgreSQL, embedded or yours: the server, connections, idempotent upserts."""
