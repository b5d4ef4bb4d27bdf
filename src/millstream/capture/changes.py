"""What each change of a source becomes in the topics: Debezium's messages, tombstones, and the columns before the first row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time as _now

from millstream.app.names import SCHEMAS
from millstream.capture import failpoints
from millstream.capture.envelope import CREATE, DELETE, UPDATE, Changed, Column, Envelope, describe
from millstream.capture.failpoints import reach
from millstream.capture.sink import Sink
from millstream.capture.source import Row
from millstream.settings import MillstreamError


class Changes:
    """A Receiver that sends the changes to the topics, in their order.

    stop: takes the topic of a table whose changes cannot be captured, and why.
    waiting: called during long work; False means that the capture is to stop.
    """

    def __init__(
        self,
        connector: str,
        app: str,
        database: str,
        sink: Sink,
        stop: Callable[[str, str], None],
        waiting: Callable[[], bool],
    ) -> None:
        self.count = 0
        self.problem = stop
        self._names = (connector, app, database)
        self._sink = sink
        self._waiting = waiting
        self._envelopes: dict[str, Envelope] = {}
        self._announced: dict[str, bytes] = {}  # by key of the topic of schemas
        self._transaction = (0, 0, 0)
        self._held = ""  # the topic of which rows are held, and these rows by key
        self._chunks: Sequence[dict[bytes, bytes]] = ()
        self._order = 0  # changes of the transaction until now
        self._changed: dict[str, Changed] = {}  # of the transaction, by topic

    def envelope(self, topic: str, schema: str, table: str, columns: Sequence[Column], key: Sequence[str]) -> Envelope:
        """Return what makes the messages of a table with these columns, when the log has them under their version."""
        version, described = describe(topic, columns, key)
        self._publish(f"{topic}/{version}", described)
        return Envelope(*self._names, schema, table, key, version)

    def hold(self, topic: str, chunks: Sequence[dict[bytes, bytes]]) -> None:
        """Take the rows out of these chunks of a topic, by key, that are changed from now on."""
        self._held, self._chunks = topic, chunks

    def announce(self, topic: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Publish the columns of a topic as its latest when they are others than before."""
        self._publish(topic, describe(topic, columns, key)[1])

    def _publish(self, key: str, value: bytes) -> None:
        if self._announced.get(key) != value:
            self._announced[key] = value
            self._sink.send(SCHEMAS, key.encode(), value)
            self._sink.flush(self._waiting)  # a reader of the rows that follow finds their columns there

    def begin(self, transaction: int, at_ms: int, commit: int) -> None:
        """See Receiver."""
        self._transaction = (transaction, at_ms, commit)
        self._order = 0
        self._changed = {}

    def commit(self) -> None:
        """See Receiver."""
        reach(failpoints.COMMIT_SENT)

    def schema(self, topic: str, schema: str, table: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        """See Receiver."""
        self._envelopes[topic] = self.envelope(topic, schema, table, columns, key)
        if (changed := self._changed.get(topic)) is not None:
            self._changed[topic] = self._envelopes[topic].changes(*self._transaction, changed.count)
        self.announce(topic, columns, key)

    def insert(self, topic: str, row: Row, position: int) -> None:
        """See Receiver."""
        envelope = self._envelopes[topic]
        self._send(topic, envelope.key(row), CREATE, None, row, position)

    def update(self, topic: str, before: Row | None, full: bool, row: Row, position: int) -> None:
        """See Receiver. A row with another key is one that is deleted and one that is created."""
        envelope = self._envelopes[topic]
        key = envelope.key(row)
        if before is not None and envelope.key(before) != key:
            self.delete(topic, before, full, position)
            reach(failpoints.KEY_CHANGING)
            self._send(topic, key, CREATE, None, row, position)
            return
        if before is not None and not full:
            before = envelope.key_only(before)
        self._send(topic, key, UPDATE, before, row, position)

    def delete(self, topic: str, before: Row, full: bool, position: int) -> None:
        """See Receiver."""
        envelope = self._envelopes[topic]
        key = envelope.key(before)
        self._send(topic, key, DELETE, before if full else envelope.key_only(before), None, position)
        self._sink.send(topic, key, None)

    def truncate(self, topic: str, position: int) -> None:
        """Delete every key that the topic holds: a compacted topic takes no message without a key, so none of op t."""
        if not self._sink.flush(self._waiting):
            raise MillstreamError("stopped in the middle of a truncate")
        if topic == self._held:
            for chunk in self._chunks:
                chunk.clear()
        for key in self._sink.live_keys(topic, self._sink.ends(topic), self._waiting):
            self._order += 1
            message = self._changes(topic).removed(key, position, self._order, int(_now() * 1000))
            self._sink.send(topic, key, message)
            self._sink.send(topic, key, None)
            self.count += 1
            reach(failpoints.TRUNCATING)

    def _send(self, topic: str, key: bytes, op: bytes, before: Row | None, after: Row | None, position: int) -> None:
        if topic == self._held:
            for chunk in self._chunks:
                chunk.pop(key, None)
        self._order += 1
        changed = self._changed.get(topic) or self._changes(topic)
        self._sink.send(topic, key, changed.change(op, before, after, position, self._order, int(_now() * 1000)))
        self.count += 1
        reach(failpoints.CHANGE_SENT)

    def _changes(self, topic: str) -> Changed:
        """Return what makes the messages of this transaction's changes of a topic. They come in the same order again."""
        if (changed := self._changed.get(topic)) is None:
            self._changed[topic] = changed = self._envelopes[topic].changes(*self._transaction)
        return changed
