"""Batches of a transaction that wait until it is on disk that their partition is in it (rule 2 of transactions/stored.py).

They are appended by a request of their own, made of copies; until then nothing else of the connection is handled, so that
a producer's batches stay in order. One connection holds up to one request so; its bytes are charged to the budget.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker import failpoints
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
    from millstream.broker.connection import Connection
    from millstream.log import Partition

logger = logging.getLogger(__name__)
Answer = ProduceResponse | asyncio.Future[ProduceResponse] | asyncio.Future[ProduceResponse | None] | None
FIELDS = ("error_code", "base_offset", "log_append_time_ms", "log_start_offset", "record_errors", "error_message")


class Postponed:
    """The batches of one request that wait, where their results go, and what they wait for."""

    def __init__(self) -> None:
        self._topics: list[TopicProduceData] = []
        self._results: list[PartitionProduceResponse] = []
        self._unsynced: dict[Partition, None] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._topics)

    def add(
        self,
        topic: TopicProduceData,
        part: PartitionProduceData,
        result: PartitionProduceResponse,
        unsynced: "list[Partition]",
    ) -> None:
        """Have a batch wait; its bytes are copied, because the request's own are read over."""
        copied = PartitionProduceData(part.index, memoryview(bytearray(part.records)))
        self._topics.append(TopicProduceData(topic.name, topic.topic_id, [copied]))
        self._results.append(result)
        self._unsynced.update(dict.fromkeys(unsynced))
        self._size += len(part.records)

    def start(
        self,
        broker: "Broker",
        connection: "Connection",
        request: ProduceRequest,
        first: Answer,
        append: Callable[[ProduceRequest], Answer],
    ) -> "asyncio.Task[ProduceResponse | None]":
        """The answer to the request: ``first`` is the one without these batches, ``append`` is what takes them."""
        go_on = connection.hold()
        broker.charge(self._size)

        async def work() -> ProduceResponse | None:
            if await broker.flusher.synced(list(self._unsynced)):
                for result in self._results:
                    # As when the coordinator cannot be reached: clients of any age try again (Kafka's ReplicaManager).
                    result.error_code = errors.NOT_ENOUGH_REPLICAS
            else:
                failpoints.reach(failpoints.ADDED_SYNCED)
                try:
                    appended = append(
                        ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, self._topics)
                    )
                except ProtocolError as error:  # without acknowledgement; this is too late to close the connection
                    logger.debug("%s", error)
                    appended = None
                go_on()
                self._take(await appended if isinstance(appended, asyncio.Future) else appended, first)
            return await first if isinstance(first, asyncio.Future) else first

        def ended(task: "asyncio.Task[ProduceResponse | None]") -> None:
            broker.charge(-self._size)
            go_on()
            if task.cancelled() and isinstance(first, asyncio.Future):
                first.cancel()

        task = broker.loop.create_task(work())
        task.add_done_callback(ended)
        return task

    def _take(self, appended: ProduceResponse | None, first: Answer) -> None:
        """Put the results where they belong."""
        if appended is None:
            return
        if isinstance(first, ProduceResponse):
            first.throttle_time_ms = max(first.throttle_time_ms, appended.throttle_time_ms)
        for result, topic in zip(self._results, appended.responses, strict=True):
            for name in FIELDS:
                setattr(result, name, getattr(topic.partition_responses[0], name))
