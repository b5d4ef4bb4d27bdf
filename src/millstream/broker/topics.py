"""What a topic may be called and look like: the rules that CreateTopics and auto-creation share."""

from __future__ import annotations

import re

from millstream.broker import limits
from millstream.broker.refused import Refused
from millstream.protocol import errors

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_TOPIC = "__share_group_state"
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_TOPIC})
MAX_NAME = 249  # with a partition number and a suffix it is still a file name
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise Refused unless Kafka allows the name."""
    if not name or name in (".", "..") or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Refused(
            errors.INVALID_TOPIC_EXCEPTION,
            f"{name!r} is no topic name: expected 1 to {MAX_NAME} of the characters a-z A-Z 0-9 . _ -, and not . or ..",
        )


def check_count(partitions: int, present: int) -> None:
    """Raise Refused unless a topic may have so many partitions. `present`: those of all other topics."""
    if partitions < 1:
        raise Refused(errors.INVALID_PARTITIONS, f"expected at least 1 partition, got {partitions}")
    if partitions > limits.MAX_PARTITIONS_PER_TOPIC or present + partitions > limits.MAX_PARTITIONS_TOTAL:
        raise Refused(
            errors.INVALID_PARTITIONS,
            f"{partitions} partitions are too many: at most {limits.MAX_PARTITIONS_PER_TOPIC} in a topic, "
            f"{limits.MAX_PARTITIONS_TOTAL} in all ({present} exist)",
        )
