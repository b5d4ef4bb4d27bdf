"""A produce request some of whose appends wait for consumers: it is answered when the last of them has been made or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.produce import PartitionProduceResponse, ProduceResponse

if TYPE_CHECKING:
    from millstream.broker.produce_checks import Context, Entry
    from millstream.broker.purgatory import DelayedAppend

FIELDS = ("error_code", "base_offset", "log_append_time_ms", "log_start_offset", "record_errors", "error_message")
"""What an answer says of a partition besides its number."""


def fill(result: PartitionProduceResponse, made: PartitionProduceResponse) -> None:
    """Put into `result`, which stands in an answer already, what became of its partition."""
    for name in FIELDS:
        setattr(result, name, getattr(made, name))


class Parked:
    """The appends of one request that wait, and its answer.

    `append` makes one of them, `when_synced` gives the answer when what was appended is on disk, if it has to be.
    """

    def __init__(
        self,
        context: Context,
        response: ProduceResponse,
        entries: Sequence[tuple[Entry, PartitionProduceResponse]],
        append: Callable[[Entry], PartitionProduceResponse],
        when_synced: Callable[[ProduceResponse], ProduceResponse | asyncio.Future[ProduceResponse]],
    ) -> None:
        self.answer: asyncio.Future[ProduceResponse | None] = context.broker.loop.create_future()
        self._acks = context.acks
        self._purgatory = context.broker.purgatory
        self._response = response
        self._append = append
        self._when_synced = when_synced
        self._left = len(entries)
        self._items: list[DelayedAppend] = []
        for entry, result in entries:
            room, given_up = partial(self._room, entry, result), partial(self._given_up, entry, result)
            timeout = context.request.timeout_ms
            item = self._purgatory.park(entry.partition, len(entry.part.records), timeout, room, given_up)
            if item is None:
                given_up()
            else:
                self._items.append(item)
        self.answer.add_done_callback(self._ended)

    def _room(self, entry: Entry, result: PartitionProduceResponse) -> None:
        fill(result, self._append(entry))
        self._one_done()

    def _given_up(self, entry: Entry, result: PartitionProduceResponse) -> None:
        partition = entry.partition
        limit = partition.topic.config.backlog_bytes
        text = f"{partition.name}: consumers are {limit} bytes behind (millstream.backlog.bytes); try again"
        fill(result, entry.refused(errors.REQUEST_TIMED_OUT, text, result.log_start_offset))
        self._one_done()

    def _one_done(self) -> None:
        self._left -= 1
        if self._left or self.answer.done():
            return
        if self._acks == 0:
            # An error is only counted: closing the connection would not tell the client more.
            self.answer.set_result(None)
        else:
            synced = self._when_synced(self._response)
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
                self._purgatory.forget(item)
