"""A topic: its name, id, settings and partitions, and the small file that says so.

File `topic.json` in the topic's folder, version 1, replaced as a whole:
    {"version": 1, "id": uuid, "name": name, "partitions": number, "config": {name: value}}
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from millstream.log import failpoints
from millstream.log.config import Defaults, TopicConfig
from millstream.log.errors import InvalidPartitions, InvalidTopic, UnknownFormat
from millstream.log.files import replace
from millstream.log.opened import OpenSegments
from millstream.log.partition import Partition
from millstream.log.traits import Traits

NAME: Final = "topic.json"
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that only the broker writes."""
MAX_NAME: Final = 249
MAX_PARTITIONS: Final = 10_000
"""Partitions of a topic: each keeps a file open."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


class Description(msgspec.Struct):
    """The content of topic.json."""

    id: uuid.UUID
    name: str
    partitions: int
    config: dict[str, str] = {}
    version: int = 1


def check_name(name: str) -> None:
    """InvalidTopic unless Kafka allows the name."""
    if name in (".", "..") or len(name) > MAX_NAME or not _LEGAL.fullmatch(name):
        raise InvalidTopic(
            f"{name!r} is no name for a topic: expected 1 to {MAX_NAME} ASCII letters, digits, dots, underscores and "
            f"hyphens, and not . or .."
        )


def check_partitions(count: int) -> None:
    """InvalidPartitions unless it is a number of partitions that a topic can have."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitions(f"{count} partitions: expected 1 to {MAX_PARTITIONS}")


def write_description(folder: Path, description: Description) -> None:
    """Replace topic.json; it survives a power cut."""
    replace(folder / NAME, msgspec.json.encode(description), point=failpoints.TOPIC_WRITTEN)


def read_description(folder: Path) -> Description:
    """topic.json; OSError or ValueError when it cannot be read, UnknownFormat when it is of a later version."""
    data = (folder / NAME).read_bytes()
    version = msgspec.json.decode(data, type=dict[str, object]).get("version")
    if version != 1:
        raise UnknownFormat(f"{folder / NAME} has version {version!r}, this Millstream knows 1: install a later one")
    return msgspec.json.decode(data, type=Description)


class Topic(Traits):
    """A topic of an open log."""

    def __init__(
        self, folder: Path, description: Description, defaults: Defaults, opened: OpenSegments, *, clean: bool, now: int
    ) -> None:
        config = TopicConfig(description.config, defaults.topics)
        super().__init__(description.name, description.id, config, defaults)
        self.folder = folder
        self.description = description
        self.recovered: list[str] = []
        self.partitions: list[Partition] = []
        self._unflushed: Callable[[Partition], None] | None = None
        self._opened = opened
        for index in range(description.partitions):
            self.open_partition(index, clean=clean, now=now)

    def __repr__(self) -> str:
        return f"Topic({self.name}, partitions={len(self.partitions)})"

    @property
    def internal(self) -> bool:
        """Whether only the broker writes it."""
        return self.name in INTERNAL

    def on_unflushed(self, call: Callable[[Partition], None]) -> None:
        """Have `call` called after each append to a partition while the topic's durability is `commit`."""
        self._unflushed = call
        for partition in self.partitions:
            partition.unflushed = call

    def set_config(self, config: TopicConfig) -> None:
        """Put settings in effect."""
        if self.config.durability != "commit":
            for partition in self.partitions:
                partition.show()
        self.config = config

    def drop_partitions(self, keep: int) -> None:
        """Forget partitions that were opened but did not become part of the topic."""
        for partition in self.partitions[keep:]:
            partition.abandon()
        del self.partitions[keep:]

    def open_partition(self, index: int, *, clean: bool, now: int) -> None:
        """Open, and if need be make, the folder of the next partition."""
        folder = self.folder / str(index)
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            self.recovered.append(f"{folder}: missing, made again; the partition is empty")
        partition = Partition(self, index, folder, self._opened, clean=clean, now=now)
        if self._unflushed is not None:
            partition.unflushed = self._unflushed
        self.recovered += partition.recovered
        self.overload.dropped_records += partition.dropped[0]
        self.overload.dropped_bytes += partition.dropped[1]
        self.partitions.append(partition)
