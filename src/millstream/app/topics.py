"""A topic that must exist before an application runs: how many partitions, which settings, and what it is for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from millstream.app.names import LAG, SCHEMAS, STATUS
from millstream.settings import MillstreamError

# What a topic is to the application that needs it; people see it.
Role = Literal["input", "table", "output", "alert", "dead letters", "internal"]
DEFAULT_PARTITIONS = 2  # enough to show that order holds per key only, few enough for Spark on a laptop
COMPACTED: Mapping[str, str] = MappingProxyType({"cleanup.policy": "compact"})

_ALIKE = 0.85  # difflib's ratio from which a name is taken for a mistake
# Apache Kafka's settings of a topic (org.apache.kafka.common.config.TopicConfig, 4.4), and the embedded broker's own.
SETTINGS = frozenset({
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "delete.retention.ms", "errors.deadletterqueue.group.enable", "file.delete.delay.ms", "flush.messages", "flush.ms",
    "follower.replication.throttled.replicas", "index.interval.bytes", "leader.replication.throttled.replicas",
    "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "max.decompressed.message.bytes",
    "max.message.bytes", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
    "millstream.archive", "millstream.backlog.bytes", "millstream.backlog.exclude", "millstream.durability",
    "millstream.overload", "millstream.validation", "min.cleanable.dirty.ratio", "min.compaction.lag.ms",
    "min.insync.replicas", "preallocate", "remote.copy.lag.bytes", "remote.copy.lag.ms", "remote.log.copy.disable",
    "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes", "retention.ms", "segment.bytes",
    "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable",
})  # fmt: skip

# The topics that Millstream itself keeps; the first part that needs one creates it. One partition: their readers want order.
INTERNAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        STATUS: {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "segment.ms": "3600000"},
        SCHEMAS: COMPACTED,
        LAG: {"cleanup.policy": "compact,delete", "retention.ms": "604800000", "segment.ms": "86400000"},
    }
)


def check_config(where: str, config: object) -> dict[str, str]:
    """Return a topic's settings if all is text; raises MillstreamError, and for a name that is nearly one that we know.

    What is unlike all of them may be another log's own; it and all values are the log's to judge.
    """
    if not isinstance(config, Mapping):
        raise MillstreamError(
            f'{where}: config must be a dict of Kafka\'s names and values, {{"retention.ms": "86400000"}}, got {config!r}.'
        )
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MillstreamError(f"{where}: config takes Kafka's names and values as text, got {name!r}: {value!r}.")
        if name not in SETTINGS and (near := difflib.get_close_matches(name, SETTINGS, 1, _ALIKE)):
            raise MillstreamError(
                f"{where}: config has the setting {name!r}, which no topic has. Did you mean {near[0]!r}?"
            )
    return dict(config)


@dataclass(frozen=True)
class NeededTopic:
    """A topic that must exist, with the settings it is created with. role: what it is to the application."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    role: Role = "input"
