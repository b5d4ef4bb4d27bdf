"""Where a replay continues: behind the last message that each partition holds, after checking that what it holds is ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from millstream.demo.sequence import Replay, Slot
from millstream.settings import MillstreamError

Partition = tuple[str, int]


class OtherInput(MillstreamError):
    """The topics hold something else than this replay; trying again will not help."""


class Last(NamedTuple):
    """The last message of a partition."""

    key: bytes | None
    value: bytes | None


def remaining(slots: Iterable[Slot], stored: Mapping[Partition, int]) -> Iterator[Slot]:
    """Yield what is still to be sent, in order.

    stored: how many messages each partition holds. The topics are the replay's alone and lose nothing, so a partition's end
    offset is that number; the position says where to go on, for payloads may be equal (two empty values are).
    """
    for slot in slots:
        if slot.offset >= stored[slot.topic, slot.partition]:
            yield slot


def check(replay: Replay, stored: Mapping[Partition, int], last: Mapping[Partition, Last]) -> int:
    """Return how many messages are stored already, after comparing each partition's end with the sequence.

    Raises OtherInput when a partition holds more than the input, or another message than it should at its end: then
    another input was replayed there, or somebody else writes to it.
    """
    open_ends = {partition: count for partition, count in stored.items() if count}
    if not open_ends:
        return 0
    for slot in replay.slots():
        where = (slot.topic, slot.partition)
        if open_ends.get(where) != slot.offset + 1:
            continue
        expected, found = Last(replay.key(slot), replay.value(slot)), last[where]
        if expected != found:
            raise OtherInput(
                f"{slot.topic} [{slot.partition}] at offset {slot.offset} holds {_shown(found)}, where this replay has"
                f" {_shown(expected)}. Another input was replayed there (other --days, --bad or --seed), or something else"
                " writes to it. Delete the topics departures and arrivals, or use another --data folder."
            )
        del open_ends[where]
        if not open_ends:
            return sum(stored.values())
    (topic, partition), count = next(iter(open_ends.items()))
    raise OtherInput(
        f"{topic} [{partition}] holds {count:,} messages, more than the whole input has for it. Another input was replayed"
        " there, or something else writes to it. Delete the topics departures and arrivals, or use another --data folder."
    )


def _shown(message: Last) -> str:
    value = "no value" if message.value is None else repr(message.value[:80].decode(errors="replace"))
    return f"{value} under the key {'null' if message.key is None else repr(message.key.decode(errors='replace'))}"
