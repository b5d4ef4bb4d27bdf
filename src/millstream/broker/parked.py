"""A produce request some of whose appends wait for consumers: it is answered when the last of them has been made or given up."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.produce import PartitionProduceResponse, ProduceResponse

if TYPE_CHECKING:
    from millstream.broker.apis.a00_produce import Produce
    from millstream.broker.parking import Waiting
    from millstream.broker.produce_checks import Entry

FIELDS = ("error_code", "base_offset", "log_append_time_ms", "log_start_offset", "record_errors", "error_message")
"""What an answer says of a partition besides its number."""


def fill(result: PartitionProduceResponse, made: PartitionProduceResponse) -> None:
    """Put into `result`, which stands in an answer already, what became of its partition."""
    for name in FIELDS:
        setattr(result, name, getattr(made, name))


class Parked:
    """The appends of one request that wait, and its answer."""

    def __init__(self, produce: Produce, response: ProduceResponse) -> None:
        self.answer: asyncio.Future[ProduceResponse | None] = produce.broker.loop.create_future()
        self._produce = produce
        self._response = response
        self._left = len(produce.blocked)
        self._items: list[Waiting] = []
        parking = produce.broker.parking
        for entry, result in produce.blocked:
            append, give_up = partial(self._append, entry, result), partial(self._give_up, entry, result)
            timeout = produce.request.timeout_ms
            item = parking.park(entry.partition, len(entry.part.records), timeout, append, give_up)
            if item is None:
                give_up()
            else:
                self._items.append(item)
        self.answer.add_done_callback(self._ended)

    def _append(self, entry: Entry, result: PartitionProduceResponse) -> None:
        # The transaction may have ended meanwhile, or the topic have been deleted.
        fill(result, self._produce.append_late(entry))
        self._one_done()

    def _give_up(self, entry: Entry, result: PartitionProduceResponse) -> None:
        partition = entry.partition
        limit = partition.topic.config.backlog_bytes
        text = f"{partition.name}: consumers are {limit} bytes behind (millstream.backlog.bytes); try again"
        fill(result, entry.refused(errors.REQUEST_TIMED_OUT, text, result.log_start_offset))
        self._one_done()

    def _one_done(self) -> None:
        self._left -= 1
        if self._left or self.answer.done():
            return
        if self._produce.acks == 0:
            # An error is only counted: closing the connection would not tell the client more.
            self.answer.set_result(None)
        else:
            synced = self._produce.when_synced(self._response)
            if isinstance(synced, asyncio.Future):
                synced.add_done_callback(self._synced)
            else:
                self.answer.set_result(synced)

    def _synced(self, source: asyncio.Future[ProduceResponse]) -> None:
        if not self.answer.done():
            self.answer.set_result(source.result())

    def _ended(self, source: asyncio.Future[ProduceResponse | None]) -> None:
        # The connection is closed: its client sends again, and this would come twice.
        if source.cancelled():
            for item in self._items:
                self._produce.broker.parking.forget(item)
