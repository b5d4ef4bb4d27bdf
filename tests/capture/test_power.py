"""A power cut of the log's machine: what the source was told to forget is still in the topics, or is copied again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from millstream.app.names import SCHEMAS
from millstream.client.admin import describe_topics, ensure_topics
from millstream.monitor import status
from tests import servers
from tests.brokers import ADDRESS, Broker
from tests.capture.conftest import Source
from tests.torture.forgetful import Disk

pytestmark = [
    pytest.mark.system,
    pytest.mark.fault,
    pytest.mark.skipif(bool(ADDRESS), reason="cuts the power of a broker of its own"),
]


@pytest.fixture
def rows(source: Source) -> Source:
    """A table of some rows."""
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
    return source


@pytest.fixture
def broker(rows: Source, tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own."""
    (tmp_path / "broker").mkdir()
    started = Broker(tmp_path / "broker" / "log").start()
    rows.kafka = started.kafka
    yield started
    started.end()


def changed(source: Source) -> None:
    """Have changes captured and confirmed to the source, and kill the capture."""
    with source.capture("t") as capture:
        capture.wait_ready()
        for n in range(1, 6):
            source.sql.execute("UPDATE t SET n = %s", [n])
        source.sql.execute("DELETE FROM t WHERE id > 1990")
        source.settled()
        capture.kill()


def folds(source: Source) -> str:
    """Capture until the topic equals the table; returns what was logged."""
    with source.capture("t") as capture:
        capture.wait_ready()
        source.settled()
        assert source.latest("t") == source.rows("t") and len(source.latest("t")) == 1990
        return f"{capture.log()} {status.read(source.kafka, source.app)['capture', 'ops']['tables']}"


@pytest.mark.skipif(shutil.which("cc") is None, reason="the disk that forgets is compiled with cc")
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_was_confirmed_to_the_source_survives(rows: Source, tmp_path: Path, seed: int | None) -> None:
    disk = Disk(tmp_path / "disk")
    data = tmp_path / "broker" / "0"
    data.mkdir(parents=True)
    disk.keep(data)
    broker = Broker(data, environment=disk.environment).start()
    rows.kafka = broker.kafka
    try:
        changed(rows)
        broker.end(signal.SIGKILL)
        broker.folder = disk.cut(data, tmp_path / "broker" / "1", None if seed is None else Random(seed))
        broker.start()
        found = servers.latest(rows.kafka, rows.topic("t"))
        assert found == rows.rows("t")  # all of it, before anything is repaired
        assert "is copied anew" not in folds(rows)
    finally:
        broker.end()


def test_a_topic_that_has_lost_its_end_is_filled_again(rows: Source, broker: Broker) -> None:
    changed(rows)
    broker.end(signal.SIGKILL)
    [segment] = (broker.folder / "topics" / rows.topic("t") / "0").glob("*.log")
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) * 3 // 4])
    broker.start()
    log = folds(rows)
    assert "is copied anew: its topic has lost messages: partition 0 ends at offset" in log
    assert "'reason': 'its topic has lost messages: partition 0" in log


def test_topics_that_are_there_already_get_what_they_need(rows: Source, broker: Broker) -> None:
    made = {"cleanup.policy": "compact", "millstream.durability": "os"}
    ensure_topics(rows.kafka, [(rows.topic("t"), 2, made), (SCHEMAS, None, None)])
    with rows.capture("t") as capture:
        capture.wait_ready()
        for found in describe_topics(rows.kafka, [rows.topic("t"), SCHEMAS]):
            assert found.config["millstream.durability"] == "commit"
        assert describe_topics(rows.kafka, [rows.topic("t")])[0].config["max.message.bytes"] == str(16 << 20)
