"""Moving a consumer group to other offsets, in the words of Kafka's tool: where it would go, before anything is touched.

An aim is one of: an offset, a shift, a time, "earliest", "latest". What lies outside the log is moved to its nearer end, as
kafka-consumer-groups does, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from millstream.client.admin import Offsets, end_offsets, offsets, start_offsets
from millstream.client.connect import TIMEOUT_S, admin, result
from millstream.client.groups import committed
from millstream.settings import Kafka, MillstreamError


@dataclass(frozen=True)
class Shift:
    """So many offsets from where the group is; negative: back."""

    by: int


Aim = int | Shift | datetime | Literal["earliest", "latest"]


@dataclass(frozen=True)
class Move:
    """A partition's change. before: None where the group had committed nothing. cut: the aim lay outside the log."""

    topic: str
    partition: int
    before: int | None
    after: int
    cut: bool = False


def moves(
    scope: Iterable[tuple[str, int]],
    positions: Mapping[tuple[str, int], int],
    starts: Offsets,
    ends: Offsets,
    aim: Aim,
    found: Offsets | None = None,
) -> list[Move]:
    """Return the change of each partition of the scope. found: what the log says to an aim that is a time; -1: nothing that new.

    Raises MillstreamError when a shift is asked for where the group is nowhere.
    """
    result = []
    for topic, partition in sorted(scope):
        place = (topic, partition)
        before, start, end = positions.get(place), starts[place], ends[place]
        if aim == "earliest":
            wanted = start
        elif aim == "latest":
            wanted = end
        elif isinstance(aim, Shift):
            if before is None:
                raise MillstreamError(
                    f"the group has committed no offset in {topic} [{partition}] that could be shifted;"
                    " leave it out with --topic, or give another aim."
                )
            wanted = before + aim.by
        elif isinstance(aim, datetime):
            at = (found or {}).get(place, -1)
            wanted = at if at >= 0 else end
        else:
            wanted = int(aim)
        after = min(max(wanted, start), end)
        result.append(Move(topic, partition, before, after, cut=after != wanted))
    return result


def plan(kafka: Kafka, group: str, aim: Aim, topics: Iterable[str] = ()) -> list[Move]:
    """Return what moving the group means. topics: "TOPIC" or "TOPIC:0,1"; without any, all that the group has committed.

    Raises MillstreamError for a topic or partition that does not exist, and a group that has committed nothing.
    """
    positions = {place: tp.offset for place, tp in committed(kafka, group).items()}
    scope = _scope(kafka, topics) if (topics := list(topics)) else set(positions)
    if not scope:
        raise MillstreamError(
            f"group {group!r} has committed no offsets; name the topics that it is to be placed in with --topic."
        )
    names = sorted({topic for topic, _ in scope})
    starts, ends = start_offsets(kafka, names), end_offsets(kafka, names)
    found: Offsets = {}
    if isinstance(aim, datetime):
        found = offsets(kafka, sorted(scope), OffsetSpec.for_timestamp(int(aim.timestamp() * 1000)))
    return moves(scope, positions, starts, ends, aim, found)


def active(kafka: Kafka, group: str) -> str | None:
    """Return who keeps the group active, in words, or None when nobody does. Raises MillstreamError."""
    future = admin(kafka).describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group]
    try:
        described = result(future, kafka, f"group {group!r} cannot be described")
    except MillstreamError as error:
        if "not found" in str(error).lower():
            return None
        raise
    if described.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD, ConsumerGroupState.UNKNOWN):
        return None
    members = [f"{m.client_id} at {m.host.lstrip('/')}" for m in described.members]
    more = f" and {len(members) - 3} more" if len(members) > 3 else ""
    return f"it is {described.state.name.lower().replace('_', ' ')}, with {', '.join(members[:3]) or 'members'}{more}"


def _scope(kafka: Kafka, topics: Iterable[str]) -> set[tuple[str, int]]:
    scope = set()
    for text in topics:
        name, colon, parts = text.partition(":")
        existing = {p for _, p in end_offsets(kafka, [name])}
        try:
            wanted = {int(p) for p in parts.split(",")} if colon else existing
        except ValueError:
            raise MillstreamError(f"expected --topic TOPIC or TOPIC:0,1, got {text!r}.") from None
        if missing := wanted - existing:
            raise MillstreamError(f"topic {name!r} has the partitions 0 to {len(existing) - 1}, not {min(missing)}.")
        scope |= {(name, p) for p in wanted}
    return scope
