"""Following a changelog on a real log: every change before the question is in the answer, and every fault heals."""

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest

from millstream.app.names import SCHEMAS
from millstream.client.admin import delete_topic, ensure_topics
from millstream.client.producer import producer
from millstream.settings import Unreachable
from millstream.spark import changelog, rows
from millstream.spark.changelog import Reader, TableCopy
from tests.brokers import Broker, fresh, wait_until
from tests.spark.test_rows import change

pytestmark = pytest.mark.system


@pytest.fixture
def topic(kafka):
    name = fresh("planes")
    make(kafka, name)
    return name


def make(kafka, name):
    ensure_topics(kafka, [(name, 2, {"cleanup.policy": "compact"}), (SCHEMAS, None, None)])


def describe(send, topic, *columns):
    value = {"topic": topic, "columns": [{"name": n, "kind": k, "nullable": True} for n, k in columns]}
    send.produce(SCHEMAS, key=topic, value=json.dumps({**value, "key": [columns[0][0]]}))


class Told(dict):
    def __call__(self, name, facts):
        self.clear()
        self.update(facts)


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def copy(kafka, topic, tmp_path, told):
    copy = TableCopy(kafka, topic, tmp_path / "files", told)
    copy.start()
    yield copy
    copy.close()


def read(copy, reader=None, timeout=30.0):
    snapshot = copy.snapshot(reader or Reader(), timeout)
    return [row for path, _ in snapshot.files for row in pq.read_table(path).to_pylist()]


def test_a_change_before_the_question_is_in_the_answer(kafka, topic, copy):
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"), ("seats", "long"))
    for round_ in range(30):
        for i in range(5):
            send.produce(topic, key=f"{i}", value=change("u", tailnum=f"N{i}", seats=round_))
        send.flush()
        reader = Reader()
        assert sorted((r["tailnum"], r["seats"]) for r in read(copy, reader)) == [(f"N{i}", round_) for i in range(5)]
        assert copy.snapshot(reader) is copy.snapshot(reader)  # nothing changed, so nothing is written


def test_a_new_column(kafka, topic, copy):
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"))
    send.produce(topic, key="1", value=change(tailnum="N1"))
    send.flush()
    assert [c.name for c in copy.schema().columns] == ["tailnum"]
    assert read(copy) == [{"tailnum": "N1"}]
    describe(send, topic, ("tailnum", "string"), ("seats", "long"))
    send.produce(topic, key="2", value=change(tailnum="N2", seats=5))
    send.flush()
    assert sorted(read(copy), key=lambda r: r["tailnum"]) == [
        {"tailnum": "N1", "seats": None},
        {"tailnum": "N2", "seats": 5},
    ]


def test_what_cannot_be_read_is_left_out_told_and_heals(kafka, topic, copy, told):
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"), ("price", "decimal"))
    send.produce(topic, key="1", value=change(tailnum="N1", price="1e25"))
    send.produce(topic, key="2", value=b"oops")
    send.produce(topic, key="3", value=change(tailnum="N3", price="3"))
    send.flush()
    assert [r["tailnum"] for r in read(copy)] == ["N3"]
    assert told["left_out"] == 2
    assert "'1e25' in column 'price' is no decimal" in told["reasons"]["1"]
    assert "Debezium envelope" in told["reasons"]["2"]
    send.produce(topic, key="1", value=change(tailnum="N1", price="1"))
    send.produce(topic, key="2", value=None)
    send.flush()
    assert sorted(r["tailnum"] for r in read(copy)) == ["N1", "N3"]
    assert (told["left_out"], told["reasons"]) == (0, {})


def test_a_table_that_is_too_large_is_told_and_heals(kafka, topic, copy, told, monkeypatch):
    monkeypatch.setattr(rows, "MAX_BYTES", 500)
    monkeypatch.setattr(changelog, "BACKOFF_S", (0.1,) * 7)
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"))
    for i in range(100):
        send.produce(topic, key=f"{i}", value=change(tailnum=f"N{i}"))
    send.flush()
    with pytest.raises(Unreachable, match="too many for a local copy"):
        read(copy)
    wait_until(lambda: told.get("state") == "failed" and "too many" in told["error"], "it is told")
    monkeypatch.setattr(rows, "MAX_BYTES", 2**20)  # as when rows were deleted
    wait_until(lambda: _answers(copy), "it heals")
    assert len(read(copy)) == 100


def _answers(copy):
    try:
        return bool(read(copy, timeout=5))
    except Unreachable:
        return False


def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_beginning(kafka, topic, copy):
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"))
    for i in range(50):
        send.produce(topic, key=f"{i}", value=change(tailnum=f"N{i}"))
    send.flush()
    assert len(read(copy)) == 50
    delete_topic(kafka, topic)
    make(kafka, topic)
    send = producer(kafka)
    for i in range(100, 200):  # more than before: offsets alone do not tell
        send.produce(topic, key=f"{i}", value=change(tailnum=f"M{i}"))
    send.flush()
    assert {r["tailnum"] for r in read(copy)} == {f"M{i}" for i in range(100, 200)}


def test_files_are_removed_when_no_reader_holds_them(kafka, topic, copy, tmp_path):
    send = producer(kafka)
    describe(send, topic, ("tailnum", "string"), ("seats", "long"))
    slow, quick = Reader(), Reader()
    send.produce(topic, key="1", value=change(tailnum="N1", seats=0))
    send.flush()
    first = copy.snapshot(slow)
    for seats in range(1, 20):
        send.produce(topic, key="1", value=change(tailnum="N1", seats=seats))
        send.flush()
        copy.snapshot(quick)
    assert pq.read_table(first.files[0][0]).to_pylist() == [{"tailnum": "N1", "seats": 0}]
    assert len(list((tmp_path / "files").iterdir())) == 3  # the slow one's, and the last two of the quick one
    del slow
    copy.snapshot(quick)
    send.produce(topic, key="1", value=change(tailnum="N1", seats=99))
    send.flush()
    copy.snapshot(quick)
    assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_broker_that_is_away_is_waited_for(tmp_path, told):
    (tmp_path / "log").mkdir()
    broker = Broker(tmp_path / "log").start()
    kafka = broker.kafka
    broker.end()
    good, other = (TableCopy(kafka, name, tmp_path / name, tell) for name, tell in (("good", told), ("other", Told())))
    for copy in (good, other):
        copy.start()
    try:
        wait_until(lambda: told.get("state") == "failed", "the broker's absence is told", 60)
        broker.start()
        make(kafka, "good")
        send = producer(kafka)
        describe(send, "good", ("tailnum", "string"))
        send.produce("good", key="1", value=change(tailnum="N1"))
        send.flush()
        wait_until(lambda: _answers(good), "it follows", 60)
        broker.end()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(read, good, None, 60.0)  # asked while the broker is away
            broker.start()
            assert answer.result(60) == [{"tailnum": "N1"}]
        send.produce("good", key="2", value=change(tailnum="N2"))
        send.flush()
        assert sorted(r["tailnum"] for r in read(good)) == ["N1", "N2"]
        with pytest.raises(Unreachable, match=r"'other'.*has its capture started"):  # a table of its own
            read(other)
    finally:
        good.close()
        other.close()
        broker.end()
