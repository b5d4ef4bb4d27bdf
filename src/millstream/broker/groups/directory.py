"""The groups of the broker, of both protocols, and their offsets: which there are, and how they are stored."""

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.groups import consumer_records
from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_members import State
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.offsets import Offsets
from millstream.broker.internal_topics import InternalTopic, Write
from millstream.broker.topics import OFFSETS_TOPIC
from millstream.log import LogError
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

logger = logging.getLogger(__name__)
# A batch of tombstones or offsets has at most so many records, to stay below max.message.bytes.
WRITE_RECORDS = 1000


class Directory:
    """All groups by id; what runs them (Running) and their offsets (Commits) are added to it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.settings
        self.store = InternalTopic(
            core.log,
            OFFSETS_TOPIC,
            core.settings.integer("offsets.topic.num.partitions"),
            core.settings.integer("offsets.topic.segment.bytes"),
        )
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.offsets: dict[str, Offsets] = {}
        self.writers: dict[int, set[str]] = {}  # producer id -> groups for which its open transaction committed offsets
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def classic(self, group_id: str, create: bool = False) -> ClassicGroup | None:
        """The classic group of an id; an empty group of the new protocol becomes one when asked to."""
        group = self.groups.get(group_id)
        if group is None and create:
            other = self.consumers.get(group_id)
            if other is not None and (other.members or self._write(group_id, consumer_records.removal(other))):
                return None
            self.consumers.pop(group_id, None)
            if self._full():
                return None
            group = self.groups[group_id] = self._make(group_id)
            group.since = self._core.loop.time()
        return group

    def exists(self, group_id: str) -> bool:
        """Whether there is a group, if only by its offsets."""
        return group_id in self.groups or group_id in self.offsets or group_id in self.consumers

    def unanswered(self, group_id: str) -> "list[Partition]":
        """What has to be synced before members are answered: only where ``__consumer_offsets`` itself is ``commit``."""
        if not self.store.durable:
            return []
        partition = self.store.partition(group_id)
        return [partition] if partition.flushed_offset < partition.end_offset else []

    def offsets_only(self, group_id: str) -> bool:
        """Whether a group exists only by offsets committed from outside."""
        return group_id in self.offsets and group_id not in self.groups and group_id not in self.consumers

    def listing(self) -> list[tuple[str, str, str, str]]:
        """Id, protocol type, state and type of every group."""
        rows = [(g.id, g.protocol_type or "", str(g.state), "classic") for g in self.groups.values()]
        rows += [(g.id, "consumer", g.state, "consumer") for g in self.consumers.values()]
        rows += [(g, "", str(State.EMPTY), "classic") for g in self.offsets if self.offsets_only(g)]
        return rows

    def _full(self) -> bool:
        """Whether there is no room for one more group."""
        return len(self.groups) + len(self.consumers) >= limits.MAX_GROUPS

    def no_classic(self, group_id: str) -> int:
        """The error of a classic request for a group that is not there (or not classic)."""
        if group_id in self.consumers:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        return errors.GROUP_MAX_SIZE_REACHED if self._full() else errors.UNKNOWN_MEMBER_ID

    def _make(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            lambda prefix: f"{prefix}-{uuid.uuid4()}",
            initial_delay=self._settings.seconds("group.initial.rebalance.delay.ms"),
            max_size=self._settings.integer("group.max.size"),
        )

    def _write(self, group_id: str, writes: list[Write], producer: tuple[int, int] | None = None) -> int:
        now = self._core.now_ms()
        try:
            for start in range(0, len(writes), WRITE_RECORDS):
                self.store.write(group_id, writes[start : start + WRITE_RECORDS], now, producer)
        except LogError as e:
            logger.error("offsets of group %s could not be stored: %s", group_id, e)
            return errors.COORDINATOR_NOT_AVAILABLE if producer is None or e.code == -1 else e.code
        return errors.NONE
