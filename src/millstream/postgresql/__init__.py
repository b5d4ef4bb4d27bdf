"""PostgreSQL, embedded or yours: the server and connections to it."""
