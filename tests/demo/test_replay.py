"""The replay on real parts: complete, paced, and exactly once in order through kills of the replayer and of the broker."""

import random
import threading
import time

import psycopg
import pytest
from demo.parts import Broker, capturing, eventually, replayer, stored

from millstream.client.admin import end_offsets, ensure_topic
from millstream.client.producer import producer
from millstream.demo import replay
from millstream.demo import stored as stored_module
from millstream.demo.plane import NEW_MODEL, set_model, wait_for_model
from millstream.demo.replay import Options, run, speed
from millstream.demo.resume import OtherInput
from millstream.demo.sending import Interrupted
from millstream.demo.sequence import TOPICS, busiest_plane
from millstream.demo.tables import prepare, records
from millstream.monitor.status import read
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError

DAYS = 2
MANY = 20  # some 34,000 messages, as fast as possible: a kill in between finds some on their way


def test_options_are_checked():
    with pytest.raises(MillstreamError, match="1 to 365"):
        Options(days=0)
    with pytest.raises(MillstreamError, match="--speed must be positive"):
        Options(speed=0)
    with pytest.raises(MillstreamError, match="--bad"):
        Options(bad=-1)
    assert speed("max") is None
    assert speed("3600") == 3600
    with pytest.raises(MillstreamError, match='or "max"'):
        speed("fast")


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("postgres")) as server:
        address = server.database("ops")
        prepare(address)
        yield address


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path / "log")
    yield broker
    broker.stop()


def contents(days):
    """What each partition must hold in the end."""
    replay = Options(days).replay()
    found = {}
    for slot in replay.slots():
        found.setdefault((slot.topic, slot.partition), []).append((replay.key(slot), replay.value(slot)))
    return found


@pytest.fixture(scope="module")
def expected():
    return contents(DAYS)


@pytest.fixture(scope="module")
def many():
    return contents(MANY)


@pytest.fixture(scope="module")
def plane():
    return busiest_plane(Options(DAYS).replay(), [row[0] for row in records("planes")])


@pytest.mark.system
def test_tables_are_filled_once(ops):
    assert prepare(ops) == {"planes": 0, "airlines": 0, "airports": 0}
    with psycopg.connect(ops) as connection:
        counts = [
            connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("planes", "airlines", "airports")
        ]
        assert counts == [3_322, 16, 1_458]
        connection.execute("UPDATE airlines SET name = 'Changed' WHERE carrier = 'UA'")
        connection.execute("DELETE FROM airports WHERE faa = 'ZYP'")
    prepare(ops)
    with psycopg.connect(ops) as connection:
        assert connection.execute("SELECT name FROM airlines WHERE carrier = 'UA'").fetchone() == ("Changed",)
        assert connection.execute("SELECT count(*) FROM airports").fetchone() == (1_457,)
        assert connection.execute("SELECT year, speed FROM planes WHERE tailnum = 'N10156'").fetchone() == (2004, None)


@pytest.mark.system
def test_a_replay_is_complete_and_the_plane_changes_at_half(broker, ops, expected, plane, tmp_path):
    facts = []
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        assert run(Options(DAYS), broker.kafka, ops, ready=facts.append)
        assert stored(broker.kafka, TOPICS) == expected
        total = sum(len(log) for log in expected.values())
        assert facts == [{"total": total, "stored": 0}]
        said = read(broker.kafka, "flights")["replay", "flights"]
        assert (said["state"], said["sent"], said["total"]) == ("done", total, total)
        with psycopg.connect(ops) as connection:
            assert connection.execute("SELECT model FROM planes WHERE tailnum = %s", (plane,)).fetchone() == (
                NEW_MODEL,
            )
        assert run(Options(DAYS), broker.kafka, ops, ready=facts.append)  # a second time there is nothing to send
        assert facts[1] == {"total": total, "stored": total}
        assert stored(broker.kafka, TOPICS) == expected


@pytest.mark.system
def test_a_new_replay_begins_with_the_plane_as_it_was(broker, ops, plane, tmp_path):
    models = {row[0]: row[4] for row in records("planes")}
    set_model(ops, plane, NEW_MODEL)
    stop, seen = threading.Event(), []
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        thread = threading.Thread(
            target=lambda: seen.append(run(Options(DAYS, speed=60), broker.kafka, ops, stop=stop))
        )
        thread.start()
        eventually(lambda: sum(end_offsets(broker.kafka, TOPICS).values()) if _there(broker) else 0, "first messages")
        with psycopg.connect(ops) as connection:
            assert connection.execute("SELECT model FROM planes WHERE tailnum = %s", (plane,)).fetchone() == (
                models[plane],
            )
        stop.set()
        thread.join()
    assert seen == [False]
    assert read(broker.kafka, "flights")["replay", "flights"]["state"] == "stopped"


def _there(broker):
    return all(ensure_topic(broker.kafka, topic, 2) is False for topic in TOPICS)


@pytest.mark.system
def test_the_speed_is_kept(broker, ops, tmp_path):
    """A day in some four seconds; the last event is sent when it is due."""
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        options = Options(1, speed=86_400 / 4)
        slots = list(options.replay().slots())
        began = time.monotonic()
        assert run(options, broker.kafka, ops)
        took = time.monotonic() - began
    assert took >= (slots[-1].minute - slots[0].minute) * 60 / options.speed


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_replayer_goes_on_where_it_was(broker, ops, many, seed, tmp_path):
    chance = random.Random(seed)
    total = sum(len(log) for log in many.values())
    goals = sorted(chance.sample(range(total // 10, total * 8 // 10), 3))
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        for goal in goals:
            child = replayer(broker.kafka, ops, "--days", str(MANY))
            child.ready()
            eventually(lambda g=goal: sum(end_offsets(broker.kafka, TOPICS).values()) >= g, f"{goal} messages")
            assert child.process.poll() is None, "it was done before it could be killed"
            child.kill()
        child = replayer(broker.kafka, ops, "--days", str(MANY))
        assert child.ready()["stored"] >= goals[-1]
        assert child.wait() == 0, "".join(child.errors)
    assert stored(broker.kafka, TOPICS) == many


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_broker_costs_nothing(broker, ops, many, seed, tmp_path):
    chance = random.Random(seed)
    total = sum(len(log) for log in many.values())
    goals = sorted(chance.sample(range(total // 10, total * 8 // 10), 3))
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        child = replayer(broker.kafka, ops, "--days", str(MANY))
        child.ready()
        for goal in goals:
            eventually(lambda g=goal: sum(end_offsets(broker.kafka, TOPICS).values()) >= g, f"{goal} messages")
            assert child.process.poll() is None, "it was done before the broker could be killed"
            broker.kill()
            time.sleep(chance.random())
            broker.start()
        assert child.wait() == 0, "".join(child.errors)
    assert stored(broker.kafka, TOPICS) == many


@pytest.mark.system
def test_somebody_elses_messages_are_refused(broker, ops, tmp_path):
    ensure_topic(broker.kafka, "departures", 2)
    client = producer(broker.kafka)
    client.produce("departures", b"mine", partition=0)
    client.flush()
    with pytest.raises(OtherInput, match=r"departures \[0\] at offset 0 holds 'mine'"):
        run(Options(1), broker.kafka, ops)
    assert read(broker.kafka, "flights")["replay", "flights"]["state"] == "failed"


@pytest.mark.system
def test_another_writer_is_noticed_while_it_runs(broker, ops, tmp_path):
    failures = []

    def replay():
        try:
            run(Options(DAYS, speed=3600), broker.kafka, ops)
        except MillstreamError as error:
            failures.append(error)

    with capturing(broker.kafka, ops, tmp_path / "capture"):
        thread = threading.Thread(target=replay)
        thread.start()
        eventually(lambda: _there(broker) and sum(end_offsets(broker.kafka, TOPICS).values()), "first messages")
        client = producer(broker.kafka)
        for partition in (0, 1):
            client.produce("departures", b"mine", partition=partition)
        client.flush()
        thread.join()
    assert "something else writes" in str(failures[0])


@pytest.mark.system
def test_capture_that_does_not_follow_is_an_error(broker, ops, plane, tmp_path):
    ensure_topic(broker.kafka, "planes", 2, {"cleanup.policy": "compact"})
    with pytest.raises(MillstreamError, match=r"does not show the plane .* it shows 'no row'\."):
        wait_for_model(broker.kafka, plane, "X", threading.Event(), timeout=0.5)
    with pytest.raises(MillstreamError, match="has no plane 'N0'"):
        set_model(ops, "N0", "X")


@pytest.mark.system
def test_a_producer_that_gave_up_is_replaced_and_one_that_always_does_is_an_error(
    broker, ops, expected, tmp_path, monkeypatch
):
    send, failures = replay._send, iter(range(2))

    def failing(*arguments):
        if next(failures, None) is not None:
            raise Interrupted("departures [0]: the message timed out")
        return send(*arguments)

    monkeypatch.setattr(replay, "_send", failing)
    monkeypatch.setattr(stored_module, "SETTLE_S", 0.0)
    with capturing(broker.kafka, ops, tmp_path / "capture"):
        assert run(Options(DAYS), broker.kafka, ops)
    assert stored(broker.kafka, TOPICS) == expected
    failures = iter(range(100))
    with pytest.raises(MillstreamError, match=r"does not get on, tried 6 times: .*timed out"):
        run(Options(DAYS), broker.kafka, ops)
