"""Producer ids and transactions: a pure state machine per transactional id, and the coordinator that stores and answers."""
