"""Topics as a store: the batches of a streaming query into topics, each exactly once, over all outputs of the query at once.

One Kafka transaction per batch, in the driver: the rows, and in the query's own consumer group the input's positions with the
marker {"v": 1, "q": query id, "b": batch} as metadata. So the marker is the group's position: lag, `millstream groups` and
exactly-once read the same thing, and nobody else may commit to that group.

Why it is exact, whatever dies when
-----------------------------------
* Rows and marker become visible together or not at all (KIP-98).
* A batch that Spark repeats is written only if its marker is not there. The marker is read after `init_transactions`, which has
  the broker end the last transaction of the transactional id's holder, one way or the other: nothing is in doubt any more.
* The same call fences an older driver, whose next call fails. So there is one writer, and what it has committed last is known to
  it without asking again.
* After an error it is not known whether a transaction was committed. The producer is thrown away; the next `apply` begins as
  after a crash.
* The rows of a repeated batch need not be the same ones: they are written once, or were written before.

`spark/outputs/stream.py` calls it. The supervisor does not commit the group of such a query: that would wipe the marker.
A `Fenced` error is final: a restart would fence the driver that is in charge now.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millstream.app.names import group
from millstream.client.connect import config, explain
from millstream.client.groups import COORDINATING
from millstream.client.producer import producer
from millstream.settings import Kafka, MillstreamError
from millstream.stores import failpoints

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
ROWS = 10_000  # that are Python objects at once
STEP_S = 60.0  # how long one step (taking the id, the marker, the commit) may take, a broker's restart included
# A transaction that is left open for longer is aborted by the broker. Below Kafka's transaction.max.timeout.ms (15 minutes), and
# above the longest batch: it lasts from the first row handed to the client to the commit, not while Spark computes.
TRANSACTION_MS = 10 * 60 * 1000
_CALL_S = 10.0
_FULL_POLL_S = 0.1
_AGAIN_S = 0.1

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_log = logging.getLogger(__name__)


class Fenced(MillstreamError):
    """Another driver of the query has taken over: this one may not write any more."""


@dataclass(frozen=True)
class Marker:
    """The last batch that was committed."""

    query_id: str
    batch: int

    def text(self) -> str:
        """Return the text form."""
        return json.dumps({"v": VERSION, "q": self.query_id, "b": self.batch}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> Marker | None:
        """Read the text form; None for a position that something else has committed."""
        try:
            facts = json.loads(text or "")
            return cls(str(facts["q"]), int(facts["b"])) if facts["v"] == VERSION else None
        except (ValueError, TypeError, KeyError):
            return None


class Topics:
    """The topics that one query writes. Use from one thread at a time."""

    def __init__(self, kafka: Kafka, app: str, query: str) -> None:
        """Connects to nothing yet. The transactional id and the consumer group are both "<app>.<query>"."""
        self._kafka = kafka
        self._name = group(app, query)
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._marker: Marker | None = None
        self._failure: KafkaError | None = None

    def apply(
        self,
        outputs: Mapping[str, pa.Table],
        *,
        query_id: str,
        batch_id: int,
        positions: Mapping[tuple[str, int], int],
    ) -> int | None:
        """Write a batch as a whole, once. Returns the number of messages, None when it was there already.

        outputs: by topic, messages: columns key and value (binary, nullable) and perhaps headers (list of structs key, value).
        positions: by (topic, partition) of all that the query reads, the offset behind the batch; they become the group's.
        Raises Fenced, Unreachable (the log is away; try again), and MillstreamError for a message that the log refuses, or an
        older copy of the checkpoint. Then nothing of the batch is written, or the next call finds that it was.
        """
        if not positions:
            raise ValueError("expected the positions of what the query reads: the marker is kept with them")
        known = self._opened(positions)
        if known is not None and known.query_id == query_id:
            if known.batch - batch_id > 1:
                raise MillstreamError(
                    f"query {self._name} brings batch {batch_id}, but batch {known.batch} is in its topics already: its"
                    " checkpoint is an older copy. Nothing was written. Put the right one back, or begin again where you want:"
                    f" `millstream groups reset {self._name} --to-…`."
                )
            if known.batch >= batch_id:
                return None
            if known.batch + 1 < batch_id:
                _log.warning(
                    "query %s: the batches %d to %d did not come here", self._name, known.batch + 1, batch_id - 1
                )
        marker = Marker(query_id, batch_id)
        offsets = [TopicPartition(t, p, offset, marker.text()) for (t, p), offset in sorted(positions.items())]
        try:
            written = self._write(outputs, offsets)
        except BaseException:
            self.close()
            raise
        self._marker = marker
        failpoints.reach(failpoints.ENDED)
        return written

    def close(self) -> None:
        """Let go of the connections. An open transaction is aborted by the next driver's start, or by the broker in the end."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        self._marker = self._failure = None

    def _opened(self, positions: Mapping[tuple[str, int], int]) -> Marker | None:
        """Return the marker of the last committed batch: read once, after the transactional id is ours."""
        if self._producer is not None:
            return self._marker
        try:
            self._producer = producer(
                self._kafka,
                transactional_id=self._name,
                transaction_timeout_ms=TRANSACTION_MS,
                delivery_report_only_error=True,
            )
            self._step(self._producer.init_transactions, "the transactional id cannot be taken")
            failpoints.reach(failpoints.TAKEN)
            self._consumer = Consumer(
                config(self._kafka, group_id=self._name, enable_auto_commit=False, isolation_level="read_committed")
            )
            asked = [TopicPartition(topic, partition) for topic, partition in positions]
            found = self._step(lambda seconds: self._consumer.committed(asked, seconds), "the marker cannot be read")  # type: ignore[union-attr]
            for one in found:
                if one.error is not None and one.error.code() != KafkaError.NO_ERROR:
                    raise explain(one.error, self._kafka, f"query {self._name}: the marker cannot be read")
        except BaseException:
            self.close()
            raise
        markers = [m for one in found if one.offset >= 0 and (m := Marker.parse(one.metadata)) is not None]
        # One transaction wrote them all; a partition that came later has none yet.
        self._marker = max(markers, key=lambda m: m.batch, default=None)
        return self._marker

    def _write(self, outputs: Mapping[str, pa.Table], offsets: list[TopicPartition]) -> int:
        producer, consumer = self._producer, self._consumer
        assert producer is not None and consumer is not None
        written = 0
        try:
            producer.begin_transaction()
            failpoints.reach(failpoints.BEGUN)
            for topic, table in outputs.items():
                written += self._produce(producer, topic, table)
            failpoints.reach(failpoints.PRODUCED)
            members = consumer.consumer_group_metadata()
            self._step(
                lambda seconds: producer.send_offsets_to_transaction(offsets, members, seconds),
                "the marker cannot be written",
            )
            failpoints.reach(failpoints.MARKED)
        except BaseException as error:
            with suppress(KafkaException):  # so that readers need not wait for our successor; it does the same
                producer.abort_transaction(_CALL_S)
            if isinstance(error, KafkaException):
                raise self._explained(error.args[0], "a batch cannot be written") from error
            raise
        self._step(producer.commit_transaction, "a batch cannot be committed")
        return written

    def _produce(self, producer: Producer, topic: str, table: pa.Table) -> int:
        for key, value, headers in _messages(table):
            while True:
                try:
                    producer.produce(topic, key=key, value=value, headers=headers, on_delivery=self._refused)  # type: ignore[arg-type]
                    break
                except BufferError:
                    producer.poll(_FULL_POLL_S)
                    self._check(topic)
        producer.poll(0)
        self._check(topic)
        return int(table.num_rows)

    def _refused(self, error: KafkaError | None, _: object) -> None:
        self._failure = self._failure or error

    def _check(self, topic: str) -> None:
        if self._failure is not None:
            raise self._explained(self._failure, f"a message cannot be written to the topic {topic}")

    def _step(self, act: Any, what: str) -> Any:
        """Do one call of the client, which takes a timeout, and again while that is what it asks for."""
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                return act(_CALL_S)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                again = reason.retriable() or reason.code() in COORDINATING
                if self._failure is None and again and time.monotonic() < deadline:
                    time.sleep(_AGAIN_S)
                    continue
                raise self._explained(self._failure or reason, what) from error

    def _explained(self, error: KafkaError, what: str) -> MillstreamError:
        if error.code() in _FENCED:
            return Fenced(
                f"another driver of the query {self._name} has taken over; this one writes nothing more. If it runs elsewhere"
                " by mistake, end it: an application's queries run in one place. Otherwise start this one again after it."
            )
        return explain(error, self._kafka, f"query {self._name}: {what}")


def _messages(table: pa.Table) -> Iterator[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """The rows of a table as messages; only some thousand are Python objects at a time."""
    names = table.schema.names
    for batch in table.to_batches(ROWS):
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        if "headers" in names:
            headers = batch.column("headers").to_pylist()
            yield from zip(
                keys, values, ([(h["key"], h["value"]) for h in each or ()] for each in headers), strict=True
            )
        else:
            for key, value in zip(keys, values, strict=True):
                yield key, value, []
