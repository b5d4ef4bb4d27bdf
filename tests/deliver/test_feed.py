"""A feed without a log: a consumer that hands out what a test gives it, and notes what is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from millstream.deliver.feed import Feed
from millstream.deliver.progress import Saved
from millstream.deliver.seen import Bounds, Origin, Seen
from millstream.deliver.sink import Interrupted, Place, Row, Written
from millstream.settings import Kafka, MillstreamError


class Message:
    """A candidate as a client hands it out."""

    def __init__(
        self, offset: int, header: str | None, partition: int = 0, more: Iterable[tuple[str, bytes]] = ()
    ) -> None:
        self._at, self._offset = partition, offset
        self._headers = [*more] + ([("origin", header.encode())] if header is not None else [])

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._at

    def offset(self) -> int:
        return self._offset

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return f"value {self._offset}".encode()


class Failure:
    """An error as a client hands it out."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code)


class Consumer:
    """Hands out what it was given; a commit is answered at the next poll, well unless `refusal` says otherwise."""

    def __init__(self, on_commit: Any, messages: list[Any]) -> None:
        self.messages = messages
        self.assigned: list[TopicPartition] = []
        self.commits: list[tuple[dict[int, int], Saved]] = []
        self.refusal: KafkaError | None = None
        self._on_commit = on_commit
        self._asked: list[list[TopicPartition]] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def poll(self, timeout: float) -> Any:
        while self._asked:
            offsets = self._asked.pop(0)
            if self.refusal is None:
                first = next(o for o in offsets if o.partition == 0)
                self.commits.append(({o.partition: o.offset for o in offsets}, Saved.parse(first.metadata)))
            self._on_commit(self.refusal, offsets)
        return self.messages.pop(0) if self.messages else None

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self._asked.append(offsets)

    def close(self) -> None:
        pass


class Made:
    """A feed, its consumer, and what the sink says it holds."""

    def __init__(self, *messages: Any, held: Iterable[Written] = (), seen: Seen | None = None) -> None:
        self.held = list(held)
        self.asked: list[Mapping[int, int]] = []
        self.consumer: Any = None

        def connect(on_commit: Any) -> Any:
            self.consumer = Consumer(on_commit, list(messages))
            return self.consumer

        def before(tail: Mapping[int, int]) -> Iterable[Written]:
            self.asked.append(dict(tail))
            return [w for w in self.held if w.place.offset >= tail.get(w.place.partition, 0)]

        self.feed = Feed(
            "_app.late", "group", Kafka("nowhere:1"), connect, {0: 5, 1: 0}, Seen() if seen is None else seen, before
        )

    def rows(self) -> list[Row | None]:
        return [self.feed.next(0) for _ in range(len(self.consumer.messages))]


def written(offset: int, at: int, rest: str = "") -> Written:
    return Written(Origin("departures", 0, offset, rest), Place(0, at))


def test_candidates_are_rows_with_their_identity_and_the_other_headers() -> None:
    made = Made(Message(5, "departures-0-7", more=[("trace", b"x"), ("query", b"forged")]), Message(6, None))
    made.feed.begin()
    assert [(p.partition, p.offset) for p in made.consumer.assigned] == [(0, 5), (1, 0)]
    first, second = made.rows()
    assert first == Row(0, 5, b"k", b"value 5", (("trace", b"x"),), Origin("departures", 0, 7), b"departures-0-7", 1.0)
    assert second is not None and second.header == b"_app.late-0-6"  # its own cause


def test_repeats_are_told_by_what_the_sink_holds_and_what_is_on_its_way() -> None:
    made = Made(
        Message(5, "departures-0-1"), Message(6, "departures-0-2"), Message(7, "departures-0-2"), held=[written(1, 40)]
    )
    assert made.asked == [{}]
    assert made.feed.next(0) is None  # written by an earlier process
    row = made.feed.next(0)
    assert row is not None
    made.feed.sending(row)
    assert made.feed.next(0) is None and made.feed.open == 1
    assert made.feed.suppressed == 2


def test_rows_of_one_event_are_told_apart_by_their_hash_and_rows_of_several_events_by_all() -> None:
    texts = [
        "departures-0-1#a",
        "departures-0-1#b",
        "departures-0-1",
        "departures-0-1,planes-0-3",
        "departures-0-1,planes-0-4",
    ]
    made = Made(*(Message(5 + n, text) for n, text in enumerate([*texts, *texts])))
    rows = []
    while made.consumer.messages:
        if (row := made.feed.next(0)) is not None:
            made.feed.sending(row)
            rows.append(row.header.decode())
    assert rows == texts


def test_the_whole_sink_is_asked_about_what_is_older_than_the_memory() -> None:
    seen = Seen(Bounds({0: 41}, {"departures-0": 100}))
    made = Made(
        Message(5, "departures-0-1"), Message(6, "departures-0-2"), held=[written(1, 40), written(300, 41)], seen=seen
    )
    assert made.asked == [{0: 41}]
    assert [row is not None for row in made.rows()] == [False, True]
    assert made.asked == [{0: 41}, {}]


def test_progress_is_committed_up_to_the_oldest_that_is_open() -> None:
    made = Made(*(Message(n, f"departures-0-{n}") for n in (5, 6, 7)))
    rows = []
    for _ in range(3):
        row = made.feed.next(0)
        assert row is not None
        made.feed.sending(row)
        rows.append(row)
    made.feed.done(rows[0], Place(0, 0))
    made.feed.done(rows[2], Place(0, 1))
    made.feed.commit()
    made.feed.next(0)
    assert made.consumer.commits == [({0: 6, 1: 0}, Saved(True, Bounds()))]
    made.feed.commit()  # nothing new
    made.feed.next(0)
    assert len(made.consumer.commits) == 1
    made.feed.done(rows[1], Place(0, 2))
    assert made.feed.mark(open=False, seconds=1)
    assert made.consumer.commits[-1] == ({0: 8, 1: 0}, Saved(False, Bounds()))


def test_a_refused_commit_is_told() -> None:
    made = Made()
    made.consumer.refusal = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert not made.feed.mark(open=True, seconds=1)
    assert made.feed.refused is made.consumer.refusal


def test_errors_of_the_consumer() -> None:
    made = Made(Failure(KafkaError._TRANSPORT))
    assert made.feed.next(0) is None  # the client mends it
    with pytest.raises(Interrupted, match=r"the topic _app\.late is gone"):
        Made(Failure(KafkaError.UNKNOWN_TOPIC_OR_PART)).feed.next(0)
    with pytest.raises(MillstreamError, match=r"the topic _app\.late cannot be read"):
        Made(Failure(KafkaError.TOPIC_AUTHORIZATION_FAILED)).feed.next(0)
    with pytest.raises(MillstreamError, match="refuses the connection"):
        Made(Failure(KafkaError._AUTHENTICATION)).feed.next(0)


def test_a_long_identity_takes_bounded_memory() -> None:
    text = ",".join(f"departures-0-{n}" for n in range(240))
    assert 3_000 < len(text) < 4_096
    made = Made(Message(5, text), Message(6, text), Message(7, text + "0"))
    row = made.feed.next(0)
    assert row is not None and row.header == text.encode() and len(row.origin.rest) <= 71
    made.feed.sending(row)
    assert made.feed.next(0) is None
    assert made.feed.next(0) is not None
