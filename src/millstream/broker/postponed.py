"""Batches that are appended a little later than they came, because something has to be done off the event loop before.

A batch of a transaction waits until it is on disk that its partition is in it (rule 2 of transactions/stored.py). A compressed
batch that takes long to unpack is checked on a thread. Both are appended by a request of their own, made of copies; until
then nothing else of the connection is handled, so that a producer's batches stay in order. One connection holds up to one
request so; its bytes are charged to the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millstream.broker import failpoints
from millstream.broker.parked import fill
from millstream.log import LogError
from millstream.log.validation import Prepared, prepare
from millstream.protocol import errors
from millstream.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.produce_checks import Context, Entry
    from millstream.log import Partition

Answer = ProduceResponse | asyncio.Future[ProduceResponse] | asyncio.Future[ProduceResponse | None] | None
Append = Callable[[ProduceRequest, list["Prepared | LogError"]], Answer]
"""Takes a request of batches that were checked, or of what is wrong with them, one for each of its topics."""


class Postponed:
    """The batches of one request that wait, where their results go, and what they wait for."""

    def __init__(self) -> None:
        self._topics: list[TopicProduceData] = []
        self._results: list[PartitionProduceResponse] = []
        self._partitions: list[Partition] = []
        self._unsynced: dict[Partition, None] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._topics)

    def add(
        self, topic: TopicProduceData, entry: Entry, result: PartitionProduceResponse, unsynced: list[Partition]
    ) -> None:
        """Have a batch wait; its bytes are copied, because the request's own are read over."""
        copied = PartitionProduceData(entry.part.index, memoryview(bytearray(entry.part.records)))
        self._topics.append(TopicProduceData(topic.name, topic.topic_id, [copied]))
        self._results.append(result)
        self._partitions.append(entry.partition)
        self._unsynced.update(dict.fromkeys(unsynced))
        self._size += len(entry.part.records)

    def start(self, context: Context, first: Answer, append: Append) -> asyncio.Task[ProduceResponse | None]:
        """The answer to the request: `first` is the one without these batches, `append` is what takes them."""
        broker = context.broker
        go_on = context.connection.hold()
        broker.charge(self._size)

        def ended(task: asyncio.Task[ProduceResponse | None]) -> None:
            broker.charge(-self._size)
            go_on()
            if task.cancelled() and isinstance(first, asyncio.Future):
                first.cancel()

        async def work() -> ProduceResponse | None:
            if self._unsynced and await broker.flusher.synced(list(self._unsynced)):
                for result in self._results:
                    # As when the coordinator cannot be reached: clients of any age try again (Kafka's ReplicaManager).
                    result.error_code = errors.NOT_ENOUGH_REPLICAS
            else:
                if self._unsynced:
                    failpoints.reach(failpoints.ADDED_SYNCED)
                appended = self._append(context, append, await self._checked(broker))
                go_on()
                self._take(await appended if isinstance(appended, asyncio.Future) else appended, first)
            return await first if isinstance(first, asyncio.Future) else first

        task = broker.loop.create_task(work())
        task.add_done_callback(ended)
        return task

    async def _checked(self, broker: Broker) -> list[Prepared | LogError]:
        """Each of the batches, checked on a thread, or what is wrong with it."""
        found: list[Prepared | LogError] = []
        for topic, partition in zip(self._topics, self._partitions, strict=True):
            [part] = topic.partition_data
            check = partial(prepare, part.records, partition.topic.config, broker.now_ms(), partition.name)
            try:
                found.append(await broker.loop.run_in_executor(broker.checking, check))
            except LogError as error:
                found.append(error)
        return found

    def _append(self, context: Context, append: Append, prepared: list[Prepared | LogError]) -> Answer:
        came = context.request
        request = ProduceRequest(came.transactional_id, came.acks, came.timeout_ms, self._topics)
        try:
            return append(request, prepared)
        except ProtocolError as error:
            # Without acknowledgement: as an error that is found at once.
            context.connection.close(str(error))
            return None

    def _take(self, appended: ProduceResponse | None, first: Answer) -> None:
        """Put the results where they belong."""
        if appended is None:
            return
        if isinstance(first, ProduceResponse):
            first.throttle_time_ms = max(first.throttle_time_ms, appended.throttle_time_ms)
        for result, topic in zip(self._results, appended.responses, strict=True):
            fill(result, topic.partition_responses[0])
