"""What changes become, by values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from millstream.app.names import SCHEMAS
from millstream.capture.changes import Changes
from millstream.capture.envelope import Column
from millstream.settings import MillstreamError

COLUMNS = (Column("id", "long", False), Column("n", "long"))


class Kept:
    """A Sink that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bytes | None]] = []
        self.flushes = True

    def prepare(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "1")

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        self.sent.append((topic, key, value))

    def flush(self, waiting: Callable[[], bool]) -> bool:
        return self.flushes

    def ends(self, topic: str) -> dict[int, int]:
        return {0: len(self.of(topic))}

    def stored(self) -> dict[str, dict[int, int]]:
        return {}

    def live_keys(self, topic: str, before: Mapping[int, int], waiting: Callable[[], bool]) -> Iterator[bytes]:
        last: dict[bytes, tuple[int, bytes | None]] = {}
        for offset, (_, key, value) in enumerate([m for m in self.sent if m[0] == topic]):
            last[key] = (offset, value)
        return iter([k for k, (offset, value) in last.items() if value is not None and offset < before.get(0, 0)])

    def of(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values of a topic."""
        return [(json.loads(k), v and json.loads(v)) for t, k, v in self.sent if t == topic]


@pytest.fixture
def sink() -> Kept:
    """An empty one."""
    return Kept()


@pytest.fixture
def changes(sink: Kept) -> Changes:
    """Changes of a table t, in a transaction that was committed at 50."""
    made = Changes("toy", "app", "db", sink, lambda topic, reason: None, lambda: True)
    made.schema("t", "public", "t", COLUMNS, ("id",))
    made.begin(7, 1000, 50)
    return made


def ops(sink: Kept) -> list[tuple[int, str | None]]:
    """What was sent: keys and operations, None for tombstones."""
    return [(k["id"], v and v["op"]) for k, v in sink.of("t")]


def test_the_columns_come_before_the_rows_and_once(changes: Changes, sink: Kept) -> None:
    changes.insert("t", {"id": 1, "n": 1}, 10)
    changes.schema("t", "public", "t", COLUMNS, ("id",))
    assert [topic for topic, _, _ in sink.sent] == [SCHEMAS, SCHEMAS, "t"]
    changes.schema("t", "public", "t", COLUMNS[:1], ("id",))
    changes.insert("t", {"id": 2}, 11)
    assert [topic for topic, _, _ in sink.sent] == [SCHEMAS, SCHEMAS, "t", SCHEMAS, SCHEMAS, "t"]
    schemas = {key.decode(): json.loads(value or b"") for topic, key, value in sink.sent if topic == SCHEMAS}
    used = [json.loads(value or b"")["source"]["schema_version"] for topic, _, value in sink.sent if topic == "t"]
    assert [len(schemas[f"t/{version}"]["columns"]) for version in used] == [2, 1]
    assert schemas["t"] == schemas[f"t/{used[1]}"]


def test_an_insert_an_update_and_a_delete(changes: Changes, sink: Kept) -> None:
    changes.insert("t", {"id": 1, "n": 1}, 10)
    changes.update("t", None, False, {"id": 1, "n": 2}, 11)
    changes.delete("t", {"id": 1, "n": None}, False, 12)
    assert ops(sink) == [(1, "c"), (1, "u"), (1, "d"), (1, None)]
    found = [v for _, v in sink.of("t") if v]
    assert [(v["before"], v["after"]) for v in found] == [
        (None, {"id": 1, "n": 1}),
        (None, {"id": 1, "n": 2}),
        ({"id": 1}, None),
    ]
    assert [json.loads(v["source"]["sequence"]) for v in found] == [["50", "10"], ["50", "11"], ["50", "12"]]
    assert changes.count == 3


def test_what_is_before_is_whole_when_the_source_says_so(changes: Changes, sink: Kept) -> None:
    changes.update("t", {"id": 1, "n": 1}, True, {"id": 1, "n": 2}, 11)
    changes.delete("t", {"id": 1, "n": 2}, True, 12)
    assert [v["before"] for _, v in sink.of("t") if v] == [{"id": 1, "n": 1}, {"id": 1, "n": 2}]


@pytest.mark.parametrize("full", [True, False])
def test_another_key_is_a_deletion_and_a_creation(changes: Changes, sink: Kept, full: bool) -> None:
    changes.update("t", {"id": 1, "n": 5 if full else None}, full, {"id": 2, "n": 6}, 11)
    assert ops(sink) == [(1, "d"), (1, None), (2, "c")]
    assert sink.of("t")[0][1]["before"] == ({"id": 1, "n": 5} if full else {"id": 1})


def test_changes_are_numbered_in_their_transaction(changes: Changes, sink: Kept) -> None:
    changes.schema("u", "public", "u", COLUMNS, ("id",))
    changes.insert("t", {"id": 1, "n": 1}, 10)
    changes.insert("u", {"id": 1, "n": 1}, 11)
    changes.insert("t", {"id": 2, "n": 1}, 12)
    changes.commit()
    changes.begin(8, 2000, 60)
    changes.insert("t", {"id": 3, "n": 1}, 55)
    found = [v["transaction"] for topic in ("t", "u") for _, v in sink.of(topic)]
    assert found == [
        {"id": "7:50", "total_order": 1, "data_collection_order": 1},
        {"id": "7:50", "total_order": 3, "data_collection_order": 2},
        {"id": "8:60", "total_order": 1, "data_collection_order": 1},
        {"id": "7:50", "total_order": 2, "data_collection_order": 1},
    ]


def test_a_truncate_deletes_what_is_there(changes: Changes, sink: Kept) -> None:
    for i in (1, 2, 3):
        changes.insert("t", {"id": i, "n": i}, i)
    changes.delete("t", {"id": 2, "n": None}, False, 4)
    before = len(ops(sink))
    changes.truncate("t", 5)
    assert ops(sink)[before:] == [(1, "d"), (1, None), (3, "d"), (3, None)]


def test_a_truncate_that_cannot_be_finished_is_not_passed_over(changes: Changes, sink: Kept) -> None:
    sink.flushes = False
    with pytest.raises(MillstreamError, match="stopped in the middle of a truncate"):
        changes.truncate("t", 5)
