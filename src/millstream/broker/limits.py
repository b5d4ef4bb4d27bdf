"""The broker's bounds: each says what it stops, and what happens when it is reached."""

from __future__ import annotations

# A frame's announced size is compared with socket.request.max.bytes (a setting); these bound the rest.

# What one read of a socket may bring; one such buffer serves all connections, because a request is used up (or its
# parts copied) before the next one is read.
READ_BYTES = 256 * 1024
# How long the requests that one read brought may keep the others waiting: the rest of them comes after the others' turn.
TURN_SECONDS = 0.002
# Compressed batches that unpack to more are checked on a thread; so are those that come in a request that has taken its
# turn with others. It is some 0.5 ms of gzip or 5,000 small records.
UNPACK_BYTES = 128 * 1024
# Threads that unpack and pack batches: each holds up to one batch of compression.MAX_UNCOMPRESSED bytes, twice.
UNPACKING_THREADS = 2
# An unfinished frame up to this size waits as a copy; a larger one gets a buffer of its own, charged to the budget.
SMALL_FRAME_BYTES = 16 * 1024
# A large frame's buffer starts with this and doubles as bytes arrive: announcing 100 MB costs the broker nothing.
FIRST_BUFFER_BYTES = 1024 * 1024
# Frames of these sizes are only for records; anything else that long is garbage or an attack (Kafka: 100 MB for all).
MAX_OTHER_REQUEST_BYTES = 8 * 1024 * 1024
# A request that has begun and of which nothing more comes for so long ends its connection: hoarders of buffers end here.
STALL_SECONDS = 30.0
# Requests of one connection that wait for their answer (long polls, fsync, rebalances); then it is not read further.
MAX_IN_FLIGHT = 100
# Appends that wait for the consumers of a topic with backpressure, over all connections, and the copies of their
# bytes; beyond either they are answered with a retriable error at once.
MAX_PARKED = 1000
MAX_PARKED_BYTES = 64 * 1024 * 1024
# Answers that a client does not read; then its requests are not read either.
MAX_UNSENT_BYTES = 4 * 1024 * 1024
# A whole fetch response, whatever the client asks for (Kafka: fetch.max.bytes = 55 MiB).
MAX_FETCH_BYTES = 55 * 1024 * 1024
# Pieces of files up to this size are copied into the answer: one system call instead of two.
COPIED_SLICE_BYTES = 16 * 1024
# Fetch sessions kept for incremental fetches; the least recently used one goes (Kafka's default, too).
MAX_FETCH_SESSIONS = 1000
# Partitions that fetch sessions remember in total; a client over it gets sessionless fetches.
MAX_SESSION_PARTITIONS = 200_000
# Topics in a name and partitions in a topic: one request must not fill the disk with empty files.
MAX_PARTITIONS_PER_TOPIC = 10_000
MAX_PARTITIONS_TOTAL = 100_000
# Connections waiting in the kernel to be accepted.
BACKLOG = 512
# Sockets of clients that connect too often (connection_creation_rate), held until they are closed; more are closed at once.
MAX_HELD = 1000
# How often idle connections and overdue frames are looked for.
SWEEP_SECONDS = 5.0
# Groups, and transactional ids: names are free for clients to make up; beyond it new ones are refused.
MAX_GROUPS = 100_000
MAX_TRANSACTIONAL_IDS = 100_000
# Member ids of a group that were given out but have not joined yet.
MAX_PENDING_MEMBERS = 10_000
# A connection must have authenticated (and finished its TLS handshake) within so long.
AUTHENTICATION_SECONDS = 15.0
# Connections that have not; at the bound the one that has been silent in this state for longest goes. Stops clients
# that open connections and never say who they are from using up max.connections.
MAX_UNAUTHENTICATED = 1000
# After a refused authentication was answered, so long until the connection is closed: the client reads the answer.
LINGER_SECONDS = 0.2
# How much of a log file is encrypted at once: as much as a socket's buffer takes.
TLS_FILE_BYTES = 128 * 1024
