"""Batches into topics, each once: skipped, fenced, refused; killed at every call and anywhere; with the broker killed, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.app.names import group
from millstream.client import admin
from millstream.client.groups import committed
from millstream.client.tail import tail
from millstream.settings import Kafka, MillstreamError, Unreachable
from millstream.stores import failpoints, topics
from millstream.stores.topics import Fenced, Marker, Topics
from tests.brokers import ADDRESS, Broker, fresh, running_broker
from tests.stores import driver

# How often the loop of kills kills: some here, more in a proof.
KILLS = int(os.environ.get("MILLSTREAM_TEST_KILLS", "15"))
ROWS = pa.table({"key": pa.array([b"a", None], pa.binary()), "value": pa.array([b"1", None], pa.binary())})
FIRST = driver.QUERY_ID


def test_markers_are_read_back_and_positions_of_others_are_none() -> None:
    assert Marker.parse(Marker("q", 7).text()) == Marker("q", 7)
    for text in (None, "", "7", "[]", "{}", '{"v": 2, "q": "q", "b": 1}', '{"v": 1, "q": "q", "b": "x"}'):
        assert Marker.parse(text) is None


def test_rows_become_messages_with_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ROWS", 1)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "origin", "value": b"x"}, {"key": "y", "value": None}], None], kind)
    assert list(topics._messages(ROWS.append_column("headers", headers))) == [
        (b"a", b"1", [("origin", b"x"), ("y", None)]),
        (None, None, []),
    ]
    assert list(topics._messages(ROWS)) == [(b"a", b"1", []), (None, None, [])]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    from tests import apache_kafka

    try:
        broker = apache_kafka.ApacheKafka(tmp_path_factory.mktemp("apache"))
    except (MillstreamError, OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no Apache Kafka here: {error}")
    broker.start()
    yield Kafka(broker.address)
    broker.end()


@pytest.fixture(params=["ours", "apache"])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    """Both logs."""
    found: Kafka = request.getfixturevalue(request.param)
    return found


def prepare(kafka: Kafka) -> str:
    """Make the topics that the driver writes, once per log and empty; return the name of an application."""
    admin.ensure_topics(kafka, [(name, 2, {}) for name in ("numbers", "totals", "input")])
    return fresh("app")


def numbers(kafka: Kafka, begin: dict[int, int] | str = "earliest", topic: str = "numbers") -> list[int]:
    return [int((m.value or b"").split()[0]) for m in tail(kafka, topic, begin, follow=False)]


def ends(kafka: Kafka, topic: str = "numbers") -> dict[int, int]:
    return {p: end for (_, p), end in admin.end_offsets(kafka, [topic]).items()}


@pytest.mark.system
def test_a_batch_is_written_once_to_all_its_topics(kafka: Kafka) -> None:
    app = prepare(kafka)
    one, two = fresh("one"), fresh("two")
    admin.ensure_topics(kafka, [(one, 1, {}), (two, 1, {})])
    where = {("input", 0): 5, ("input", 1): 0}
    first = Topics(kafka, app, "q")
    assert first.apply({one: ROWS, two: ROWS}, query_id=FIRST, batch_id=0, positions=where) == 4
    assert first.apply({one: ROWS}, query_id=FIRST, batch_id=0, positions=where) is None
    assert first.apply({one: ROWS.slice(0, 0)}, query_id=FIRST, batch_id=1, positions=where | {("input", 0): 9}) == 0
    first.close()
    again = Topics(kafka, app, "q")
    assert again.apply({one: ROWS}, query_id=FIRST, batch_id=1, positions=where) is None
    with pytest.raises(ValueError, match="positions"):
        again.apply({one: ROWS}, query_id=FIRST, batch_id=2, positions={})
    assert again.apply({}, query_id=FIRST, batch_id=2, positions=where) == 0
    again.close()
    found = [(m.key, m.value) for m in tail(kafka, one, "earliest", follow=False)]
    assert (
        found == [(b"a", b"1"), (None, None)] == [(m.key, m.value) for m in tail(kafka, two, "earliest", follow=False)]
    )
    assert {place: tp.offset for place, tp in committed(kafka, group(app, "q")).items()} == where


@pytest.mark.system
def test_a_new_checkpoint_begins_again_and_an_older_copy_is_refused(kafka: Kafka) -> None:
    app, to, where = prepare(kafka), fresh("to"), {("input", 0): 1}
    admin.ensure_topics(kafka, [(to, 1, {})])
    writing = Topics(kafka, app, "q")
    for number in range(3):
        assert writing.apply({to: ROWS}, query_id=FIRST, batch_id=number, positions=where) == 2
    assert writing.apply({to: ROWS}, query_id=FIRST, batch_id=1, positions=where) is None
    with pytest.raises(MillstreamError, match="brings batch 0, but batch 2 is in its topics already"):
        writing.apply({to: ROWS}, query_id=FIRST, batch_id=0, positions=where)
    assert writing.apply({to: ROWS}, query_id="00000000-0000-0000-0000-000000000002", batch_id=0, positions=where) == 2
    writing.close()


@pytest.mark.system
def test_an_older_driver_is_fenced(kafka: Kafka) -> None:
    app, to, where = prepare(kafka), fresh("to"), {("input", 0): 1}
    admin.ensure_topics(kafka, [(to, 1, {})])
    older, newer = Topics(kafka, app, "q"), Topics(kafka, app, "q")
    assert older.apply({to: ROWS}, query_id=FIRST, batch_id=0, positions=where) == 2
    assert newer.apply({to: ROWS}, query_id=FIRST, batch_id=0, positions=where) is None
    with pytest.raises(Fenced, match=r"another driver of the query .* has taken over"):
        older.apply({to: ROWS}, query_id=FIRST, batch_id=1, positions=where)
    assert newer.apply({to: ROWS}, query_id=FIRST, batch_id=1, positions=where) == 2
    assert len(list(tail(kafka, to, "earliest", follow=False))) == 4
    older.close()
    newer.close()


@pytest.mark.system
def test_a_message_that_is_refused_is_named_and_nothing_is_written(ours: Kafka) -> None:
    app, small, other, where = prepare(ours), fresh("small"), fresh("other"), {("input", 0): 1}
    admin.ensure_topics(ours, [(small, 1, {"max.message.bytes": "1000"}), (other, 1, {})])
    writing = Topics(ours, app, "q")
    large = pa.table({"key": pa.array([None], pa.binary()), "value": pa.array([os.urandom(5000)], pa.binary())})
    with pytest.raises(MillstreamError, match=r"[Mm]essage size too large|larger than"):
        writing.apply({other: ROWS, small: large}, query_id=FIRST, batch_id=0, positions=where)
    assert writing.apply({other: ROWS}, query_id=FIRST, batch_id=0, positions=where) == 2
    assert len(list(tail(ours, other, "earliest", follow=False))) == 2
    writing.close()


@pytest.mark.system
def test_a_batch_larger_than_the_buffer_is_written(ours: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    app, to = prepare(ours), fresh("to")
    admin.ensure_topics(ours, [(to, 1, {})])
    original = topics.producer
    monkeypatch.setattr(
        topics, "producer", lambda kafka, **more: original(kafka, **more, queue_buffering_max_messages=100)
    )
    writing = Topics(ours, app, "q")
    table = pa.table({"key": pa.nulls(30_000, pa.binary()), "value": pa.array([b"x" * 50] * 30_000, pa.binary())})
    assert writing.apply({to: table}, query_id=FIRST, batch_id=0, positions={("input", 0): 1}) == 30_000
    assert len(list(tail(ours, to, "earliest", follow=False))) == 30_000
    writing.close()


def drive(
    kafka: Kafka, app: str, folder: Path, *words: object, failpoint: str = ""
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.stores.driver", kafka.bootstrap, app, str(folder), *map(str, words)],
        env=os.environ | ({failpoints.VARIABLE: failpoint} if failpoint else {}),
        capture_output=True,
        text=True,
    )


def check(kafka: Kafka, begin: dict[int, int], totals: dict[int, int], batches: int) -> None:
    found = numbers(kafka, begin)
    assert sorted(found) == list(range(batches * driver.SIZE)), f"{len(found)} messages, {len(set(found))} distinct"
    assert sorted(numbers(kafka, totals, "totals")) == [number * driver.SIZE for number in range(batches)]


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.parametrize("point", failpoints.TOPICS)
def test_killed_at_each_call(kafka: Kafka, tmp_path: Path, point: str) -> None:
    app = prepare(kafka)
    begin, totals = ends(kafka), ends(kafka, "totals")
    times = 1 if point == failpoints.TAKEN else 2
    killed = drive(kafka, app, tmp_path / "run", 4, failpoint=f"{point}:{times}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = drive(kafka, app, tmp_path / "run", 4)
    assert done.returncode == 0, done.stderr
    check(kafka, begin, totals, 4)


@pytest.mark.system
@pytest.mark.fault
def test_killed_anywhere_many_times(kafka: Kafka, tmp_path: Path) -> None:
    app = prepare(kafka)
    begin, totals = ends(kafka), ends(kafka, "totals")
    done = drive(kafka, app, tmp_path / "run", 10, KILLS)
    assert done.returncode == 0, done.stderr
    batches = int(done.stdout)
    assert batches >= 10
    check(kafka, begin, totals, batches)


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.skipif(ADDRESS is not None, reason="the broker is not ours to kill")
def test_the_broker_is_killed_in_between(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    broker = Broker(tmp_path / "data").start()
    app = prepare(broker.kafka)
    writing, number = Topics(broker.kafka, app, "numbers"), 0
    stop = threading.Event()

    def kills() -> None:
        while not stop.wait(1.0):
            broker.end(signal.SIGKILL)
            time.sleep(0.1)
            broker.start()

    killer = threading.Thread(target=kills)
    killer.start()
    try:
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            try:
                where = {("input", 0): (number + 1) * driver.SIZE}
                writing.apply(driver.outputs(number), query_id=FIRST, batch_id=number, positions=where)
                number += 1
            except Unreachable:
                continue  # the same batch again, as Spark's restarted query would
    finally:
        stop.set()
        killer.join()
    writing.close()
    check(broker.kafka, dict.fromkeys((0, 1), 0), dict.fromkeys((0, 1), 0), number)
    broker.end()
    assert number > 5
