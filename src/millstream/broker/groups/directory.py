"""The groups of the broker, of all kinds, and their offsets: which there are, how they are stored, and their clocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.groups.group import Group, Kind
from millstream.broker.groups.offsets import Offsets
from millstream.broker.internal_topics import InternalTopic, Write
from millstream.broker.topics import OFFSETS_TOPIC
from millstream.log import LogError
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

_log = logging.getLogger(__name__)
# A batch of tombstones or offsets has at most so many records, to stay below max.message.bytes.
WRITE_RECORDS = 1000
# A timer may fire a little early; groups compare times exactly.
EARLY_SECONDS = 0.001

G = TypeVar("G", bound=Group)


class Directory:
    """All groups by id, whatever their kind, and all offsets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.store = InternalTopic(
            core.log,
            OFFSETS_TOPIC,
            core.settings.integer("offsets.topic.num.partitions"),
            core.settings.integer("offsets.topic.segment.bytes"),
        )
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, Offsets] = {}
        self.kinds: dict[str, Kind] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._version = -1
        self._topics: dict[str, tuple[bytes, int]] = {}
        self._names: dict[bytes, str] = {}

    # ---- which there are

    def find(self, kind: type[G], group_id: str) -> G | None:
        """The group of an id, if it is of a kind."""
        group = self.groups.get(group_id)
        return group if isinstance(group, kind) else None

    def exists(self, group_id: str) -> bool:
        """Whether there is a group, if only by its offsets."""
        return group_id in self.groups or group_id in self.offsets

    def offsets_only(self, group_id: str) -> bool:
        """Whether a group exists only by offsets committed from outside."""
        return group_id in self.offsets and group_id not in self.groups

    def full(self) -> bool:
        """Whether there is no room for one more group."""
        return len(self.groups) >= limits.MAX_GROUPS

    def topics(self) -> dict[str, tuple[bytes, int]]:
        """The topics that exist, with ids and partitions; another dictionary only when one came, went or grew."""
        if self._version != self._core.topics_version:
            self._version = self._core.topics_version
            self._topics = {n: (t.id.bytes, len(t.partitions)) for n, t in self._core.log.topics.items()}
            self._names = {topic_id: name for name, (topic_id, _) in self._topics.items()}
        return self._topics

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic that exists."""
        self.topics()
        return self._names.get(topic_id)

    # ---- how they come and go

    def vacate(self, group_id: str) -> int:
        """Remove a group, if there is one and it is empty, to make room for one of another kind; the error code."""
        group = self.groups.get(group_id)
        if group is None:
            return errors.NONE
        if not group.empty or not group.convertible:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        return self.remove(group, [])

    def remove(self, group: Group, more: list[Write]) -> int:
        """Remove a group, and store some more with that; the error code."""
        kind = self.kinds[group.kind]
        error = self.write(group.id, [*more, *kind.removal(group)])
        if not error:
            del self.groups[group.id]
            kind.removed(group)
            self.schedule(group.id)
        return error

    def write(self, group_id: str, writes: list[Write], producer: tuple[int, int] | None = None) -> int:
        """Store records that belong to a group, with `producer` inside its transaction; the error code."""
        now = self._core.now_ms()
        try:
            for start in range(0, len(writes), WRITE_RECORDS):
                self.store.write(group_id, writes[start : start + WRITE_RECORDS], now, producer)
        except LogError as e:
            _log.error("group %s could not be stored: %s", group_id, e)
            return errors.COORDINATOR_NOT_AVAILABLE if producer is None or e.code == -1 else e.code
        return errors.NONE

    def unanswered(self, group_id: str) -> list[Partition]:
        """What has to be synced before members are answered: only where `__consumer_offsets` itself is `commit`.

        A generation or a member epoch that a power cut takes back fences its members, and they join again.
        """
        if not self.store.durable:
            return []
        partition = self.store.partition(group_id)
        return [partition] if partition.flushed_offset < partition.end_offset else []

    # ---- their clocks

    def schedule(self, group_id: str) -> None:
        """Watch the group's next deadline."""
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer.cancel()
        group = self.groups.get(group_id)
        deadline = group.next_deadline() if group is not None else None
        if deadline is not None:
            self._timers[group_id] = self._core.loop.call_at(deadline, self._tick, group_id)

    def watch(self, group_id: str) -> None:
        """A deadline may have moved back: only an already running timer is needed, it looks again when it fires."""
        if group_id not in self._timers:
            self.schedule(group_id)

    def _tick(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = self.groups.get(group_id)
        if group is not None:
            self.kinds[group.kind].tick(group, self._core.loop.time() + EARLY_SECONDS)
            self.watch(group_id)

    def log_gone(self, group: Group, member_ids: Collection[str]) -> None:
        """Say which members a clock has removed."""
        for member_id in member_ids:
            _log.info("group %s: member %s is gone (session or rebalance timeout)", group.id, member_id)

    def close(self) -> None:
        """End the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
