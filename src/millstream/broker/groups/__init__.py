"""Consumer groups: pure state machines, the offsets they commit, and the coordinator that stores and answers."""
