"""A topic as its partitions know it: its name, id, settings and counters."""

from __future__ import annotations

import uuid

from millstream.log.config import Defaults, TopicConfig
from millstream.log.overload import Counters


class Traits:
    """What all partitions of a topic have in common."""

    def __init__(self, name: str, id: uuid.UUID, config: TopicConfig, defaults: Defaults) -> None:
        self.name = name
        self.id = id
        """Another one when a topic is deleted and created again."""
        self.config = config
        self.overload = Counters()
        self.producer_expiration_ms = defaults.producer_expiration_ms
        self.dedupe_bytes = defaults.dedupe_bytes
