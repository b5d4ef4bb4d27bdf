"""Where appends wait while consumers of a `backpressure` topic catch up: bounded, in order, until their time is over.

In a partition appends wait in the order in which they came, and one that comes while others wait goes behind them, so
that a producer's batches stay in order. While somebody waits, the backlog is looked at every RECHECK_SECONDS: it falls
by commits, retention, expiry of offsets and changes of the topic's settings alike.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.groups.directory import Directory
from millstream.broker.overload import GO_ON, Verdict, judge, slowest

if TYPE_CHECKING:
    from millstream.log import Partition

# How often the backlog is looked at while somebody waits; also how long the slowest group's position is remembered.
RECHECK_SECONDS = 0.05
# Of a request's timeout so much may be spent waiting: the answer must be there before the client gives up.
SHARE_OF_TIMEOUT = 0.8
# However long a client says that it can wait.
MAX_WAIT_SECONDS = 60.0


class DelayedAppend:
    """An append that waits: its bytes, what carries it out, and what says that its time was over."""

    __slots__ = ("append", "deadline", "give_up", "gone", "partition", "since", "size")

    def __init__(
        self,
        partition: "Partition",
        size: int,
        since: float,
        deadline: float,
        append: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.size = size
        self.since = since
        self.deadline = deadline
        self.append = append
        self.give_up = give_up
        self.gone = False


class Purgatory:
    """All appends that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, groups: Directory) -> None:
        self._loop = loop
        self._groups = groups
        self._queues: dict[Partition, deque[DelayedAppend]] = {}
        self._positions: dict[Partition, tuple[float, int | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0
        self.bytes = 0

    def verdict(self, partition: "Partition") -> Verdict:
        """Whether an append to the partition may go on now, and with which throttle time."""
        if partition in self._queues:
            return Verdict(0, True)
        config = partition.topic.config
        return judge(self.backlog(partition), config.backlog_bytes) if config.overload == "backpressure" else GO_ON

    def backlog(self, partition: "Partition") -> int:
        """Bytes that the slowest group has yet to read; 0 when no group counts."""
        now = self._loop.time()
        known = self._positions.get(partition)
        if known is None or now - known[0] >= RECHECK_SECONDS:
            where = partition.topic.name, partition.index
            offsets = self._groups.offsets.items()
            positions = ((group, o.committed[where].offset) for group, o in offsets if where in o.committed)
            if len(self._positions) > limits.MAX_PARTITIONS_TOTAL:
                self._positions.clear()
            known = self._positions[partition] = now, slowest(positions, partition.topic.config.backlog_exclude)
        position = known[1]
        return 0 if position is None else partition.bytes_from(max(position, partition.start_offset))

    def park(
        self,
        partition: "Partition",
        size: int,
        timeout_ms: int,
        append: Callable[[], None],
        give_up: Callable[[], None],
    ) -> DelayedAppend | None:
        """Have an append wait; None when too many wait already."""
        counters = partition.topic.overload
        if self.count >= limits.MAX_PARKED or self.bytes + size > limits.MAX_PARKED_BYTES:
            counters.refused_requests += 1
            return None
        now = self._loop.time()
        deadline = now + min(max(0, timeout_ms) / 1000 * SHARE_OF_TIMEOUT, MAX_WAIT_SECONDS)
        item = DelayedAppend(partition, size, now, deadline, append, give_up)
        self._queues.setdefault(partition, deque()).append(item)
        self.count += 1
        self.bytes += size
        counters.blocked_requests += 1
        counters.waiting_requests += 1
        counters.waiting_bytes += size
        self._watch()
        return item

    def forget(self, item: DelayedAppend) -> None:
        """Whoever sent it is gone: it is not appended any more."""
        if not item.gone:
            queue = self._queues[item.partition]
            queue.remove(item)
            if not queue:
                del self._queues[item.partition]
            self._left(item)

    def _left(self, item: DelayedAppend) -> None:
        item.gone = True
        self.count -= 1
        self.bytes -= item.size
        counters = item.partition.topic.overload
        counters.waiting_requests -= 1
        counters.waiting_bytes -= item.size
        counters.blocked_ms += int((self._loop.time() - item.since) * 1000)

    def _watch(self) -> None:
        if self._timer is None and self._queues:
            self._timer = self._loop.call_later(RECHECK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for partition, queue in list(self._queues.items()):
            while queue:
                item = queue[0]
                config = partition.topic.config
                if config.overload != "backpressure" or self.backlog(partition) < config.backlog_bytes:
                    queue.popleft()
                    self._left(item)
                    item.append()
                elif item.deadline <= now:
                    queue.popleft()
                    self._left(item)
                    partition.topic.overload.timed_out_requests += 1
                    item.give_up()
                else:
                    break
            for item in [item for item in queue if item.deadline <= now]:
                queue.remove(item)
                self._left(item)
                partition.topic.overload.timed_out_requests += 1
                item.give_up()
            if not queue:
                del self._queues[partition]
        self._watch()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
