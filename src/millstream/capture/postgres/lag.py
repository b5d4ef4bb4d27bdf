"""How far PostgreSQL's log is, and how far those are who follow it: slots and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from millstream.capture.lag import MAX_FOLLOWERS, Follower, Look
from millstream.postgresql.connect import connect, explain

STATEMENT_S = 10.0

_LOOK = """
SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn, COALESCE(pg_current_wal_flush_lsn() - s.restart_lsn, 0), s.safe_wal_size,
       COALESCE(s.active, false), s.active_pid
FROM (SELECT) AS one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""
# A role without pg_monitor sees that there are others, and not how far they are.
_FOLLOWERS = """
SELECT application_name, COALESCE(pg_current_wal_flush_lsn() - replay_lsn, 0),
       extract(epoch FROM replay_lag)::float8
FROM pg_stat_replication WHERE pid IS DISTINCT FROM %s
UNION ALL
SELECT 'slot ' || slot_name, COALESCE(pg_current_wal_flush_lsn() - COALESCE(confirmed_flush_lsn, restart_lsn), 0), NULL
FROM pg_replication_slots WHERE NOT active AND slot_name <> %s
ORDER BY 1 LIMIT %s
"""


@contextmanager
def watching(conninfo: str, slot: str, name: str) -> Iterator[Callable[[], Look]]:
    """Connect and give what looks. name: of the connection. Raises MillstreamError when the source does not answer."""
    with connect(conninfo, application=name, autocommit=True, statement_timeout_s=STATEMENT_S) as connection:

        def look() -> Look:
            try:
                row = connection.execute(_LOOK, [slot]).fetchone()
                assert row is not None
                end, kept, left, active, pid = row
                others = connection.execute(_FOLLOWERS, [pid, slot, MAX_FOLLOWERS]).fetchall()
            except psycopg.Error as error:
                raise explain(error, conninfo) from error
            followers = tuple(Follower(one, max(0, int(lag)), seconds) for one, lag, seconds in others)
            return Look(
                int(end), max(0, int(kept)), None if left is None else max(0, int(left)), bool(active), followers
            )

        yield look
