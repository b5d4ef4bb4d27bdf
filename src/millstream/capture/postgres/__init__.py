"""PostgreSQL as a source of capture: its log through a replication slot, its tables in chunks by primary key."""
