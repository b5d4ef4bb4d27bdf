"""Backpressure: when producers of a topic are slowed down, and when they have to wait. Values only.

A topic with `millstream.overload=backpressure` keeps, in each partition, at most about `millstream.backlog.bytes` that
the slowest group has yet to read. A group counts for a partition from its first committed offset there on, for as long
as that offset is kept: also while none of its members run, which is what a stalled consumer looks like. Offsets of a
group that has been empty for `offsets.retention.minutes` expire, and DeleteGroups or OffsetDelete end it at once.
Groups named in the topic's `millstream.backlog.exclude` (names separated by commas, a * at the end stands for
anything) do not count; a topic in which no group counts has no backlog.

Position is what a group has committed, so the limit should be well above what arrives between two commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_THROTTLE_MS: Final = 500
"""Throttle time just below the limit; half way to the limit it is 0, in between in proportion."""


class Verdict(NamedTuple):
    """What a producer gets: a throttle time in ms, or to wait."""

    throttle_ms: int = 0
    blocked: bool = False


GO_ON: Final = Verdict()


def judge(backlog: int, limit: int) -> Verdict:
    """The verdict on a producer by the bytes that the slowest group has yet to read and the most that may be."""
    if backlog >= limit:
        return Verdict(MAX_THROTTLE_MS, True)
    half = limit // 2
    if backlog <= half:
        return GO_ON
    return Verdict(1 + (backlog - half) * (MAX_THROTTLE_MS - 1) // (limit - half))


def counts(group: str, exclude: Sequence[str]) -> bool:
    """Whether a group is waited for."""
    return not any(group.startswith(name[:-1]) if name.endswith("*") else group == name for name in exclude)


def slowest(positions: Iterable[tuple[str, int]], exclude: Sequence[str]) -> int | None:
    """The smallest of the committed offsets by group; None when no group counts."""
    return min((offset for group, offset in positions if counts(group, exclude)), default=None)
