"""How far a capture is behind: by values, and while it hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.capture import failpoints
from millstream.capture.lag import MAX_SAMPLES, Ages, Follower, LagWatch, Look
from millstream.monitor import status
from millstream.settings import Unreachable
from tests import servers
from tests.capture.conftest import Source


def test_since_when_a_position_is_behind() -> None:
    ages = Ages()
    assert ages.behind(5.0, 0) == 0.0
    for now, end in ((10.0, 100), (11.0, 100), (12.0, 150), (13.0, 120), (14.0, 300)):
        ages.note(now, end)
    assert [ages.behind(20.0, p) for p in (99, 100, 149, 150, 299, 300, 400)] == [10.0, 8.0, 8.0, 6.0, 6.0, 0.0, 0.0]


def test_a_long_lag_takes_little_memory() -> None:
    ages = Ages()
    for i in range(10 * MAX_SAMPLES):
        ages.note(float(i), i)
    last = 10 * MAX_SAMPLES
    assert len(ages._ends) <= MAX_SAMPLES
    assert ages.behind(last, -1) == last
    assert ages.behind(last, 0) < last
    assert ages.behind(last, last - 2) == 1.0


def test_what_is_told(caplog: pytest.LogCaptureFixture) -> None:
    looks = [
        Look(100, 10, None, True),
        Look(200, 80, 20, False, [Follower("standby", 5, 0.5), Follower("slot old", 7)]),
        Unreachable("gone"),
        Look(300, 10, 90, True),
    ]
    told: list[dict[str, object]] = []

    @contextmanager
    def watch() -> Iterator[Callable[[], Look]]:
        def look() -> Look:
            if isinstance(found := looks.pop(0), Exception):
                raise found
            return found

        yield look

    lag = LagWatch(watch, lambda: 100, told.append)
    lag._stop.wait = lambda seconds: not looks and lag._stop.set()  # type: ignore[method-assign,assignment,return-value]
    with lag:
        servers.wait_for(lambda: len(told) == 4, "all is told")
    assert told[0]["lag_bytes"] == 0 and told[0]["lag_seconds"] == 0.0 and not told[0]["in_danger"]
    assert told[1]["lag_bytes"] == 100 and told[1]["in_danger"] and told[1]["connected"] is False
    assert (told[1]["followers"], told[1]["followers_seconds"]) == ({"standby": 5, "slot old": 7}, {"standby": 0.5})
    assert told[2] == {"lag_problem": "gone"}
    assert told[3]["lag_bytes"] == 200 and not told[3]["in_danger"]
    assert caplog.text.count("max_slot_wal_keep_size") == 1


@pytest.mark.system
def test_the_lag_is_shown_while_the_capture_hangs(source: Source) -> None:
    def said() -> dict[str, Any]:
        return status.read(source.kafka, source.app).get(("capture", "ops"), {})

    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    with source.capture("t", held={failpoints.COMMIT_SENT: 600}) as capture:  # stuck with its first transaction
        capture.wait_ready()
        servers.wait_for(lambda: said().get("lag_bytes") == 0, "it is not behind")
        source.sql.execute("INSERT INTO t VALUES (1, 1)")
        servers.wait_for(lambda: said()["lag_bytes"] > 0, "it is behind")
        source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(2, 5000) i")
        servers.wait_for(lambda: said()["lag_bytes"] > 100_000 and said()["lag_seconds"] > 2, "it falls further behind")
        facts = said()
        assert facts["kept_bytes"] > 100_000 and facts["connected"] and facts["tables"]
        query = "SELECT pg_create_logical_replication_slot('forgotten_' || %s, 'pgoutput')"
        number = source.app[-8:]
        source.sql.execute(query, [number])
        try:
            servers.wait_for(lambda: f"slot forgotten_{number}" in said()["followers"], "other followers are named")
        finally:
            source.sql.execute("SELECT pg_drop_replication_slot('forgotten_' || %s)", [number])
        os.kill(capture.process.pid, signal.SIGKILL)
