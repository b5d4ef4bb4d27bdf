"""A topic that must exist before an application runs: how many partitions, which settings, and what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from millstream.app.names import LAG, SCHEMAS, STATUS

# What a topic is to the application that needs it; people see it.
Role = Literal["input", "table", "output", "alert", "dead letters", "internal"]
DEFAULT_PARTITIONS = 2  # enough to show that order holds per key only, few enough for Spark on a laptop
COMPACTED: Mapping[str, str] = MappingProxyType({"cleanup.policy": "compact"})

# The topics that Millstream itself keeps; the first part that needs one creates it. One partition: their readers want order.
INTERNAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        STATUS: {"cleanup.policy": "compact,delete", "retention.ms": "86400000", "segment.ms": "3600000"},
        SCHEMAS: COMPACTED,
        LAG: {"cleanup.policy": "compact,delete", "retention.ms": "604800000", "segment.ms": "86400000"},
    }
)


@dataclass(frozen=True)
class NeededTopic:
    """A topic that must exist, with the settings it is created with. role: what it is to the application."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    role: Role = "input"
