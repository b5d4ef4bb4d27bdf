"""A share partition (KIP-932) as a pure state machine: which records of a partition a share group has yet to work off.

Records between the start offset and the end are in flight: available, acquired by a member for a time, acknowledged, or
archived (never delivered again: rejected, delivered too often, or not there). The start moves behind the last offset before
which everything is done.

Events are method calls with the time. They change nothing: each returns a Change, whose `update` has to be stored before the
change is made (`make`) and answered. What a broker's death takes is then only what was acquired and not acknowledged: as in
Kafka those deliveries are not counted. Offsets without records (compacted ones, markers) inside of what is acquired are
acknowledged by clients as gaps; those between two batches are archived here.

Source: Kafka's SharePartition; KIP-932, KIP-1206 (record limit), KIP-1222 (renewal).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from millstream.broker.refused import Refused
from millstream.broker.share.runs import Run, State, joined, overlaid, within
from millstream.protocol import errors


class Limits(NamedTuple):
    """Settings of the group, as they are now."""

    deliveries: int = 5  # group.share.delivery.count.limit: after so many a record is archived
    in_flight: int = 2000  # group.share.partition.max.record.locks: offsets between start and end
    lock_seconds: float = 30.0  # group.share.record.lock.duration.ms


class Mode(IntEnum):
    """How many records a fetch acquires (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # whole record batches: more than the limit if a batch is larger than what is left of it
    RECORD_LIMIT = 1  # never more than the limit


class Ack(IntEnum):
    """What a member says of records that it has acquired."""

    GAP = 0  # there is no record at the offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """Offsets `first` to `last` (inclusive), with one type for all or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Acquired(NamedTuple):
    """Offsets that a member has acquired, and the number of this delivery."""

    first: int
    last: int
    deliveries: int


class Update(NamedTuple):
    """What has to be stored: the start if it has moved, else -1, and offsets in their new states."""

    start: int
    batches: tuple[Run, ...]
    complete: int  # offsets from the start on whose delivery is complete (KIP-1226)


@dataclass(frozen=True, slots=True)
class Change:
    """What an event leads to."""

    runs: list[Run]
    start: int
    end: int
    update: Update | None = None
    acquired: list[Acquired] = field(default_factory=list)


class SharePartition:
    """One partition for one group. `start` and `end` are offsets; `end` is the first one that was never acquired."""

    def __init__(self, start: int, stored: Iterable[Run] = ()) -> None:
        """From a start offset, and what is stored of the offsets behind it (sorted); what is not stored is available."""
        made: list[Run] = []
        at = start
        for run in stored:
            if run.last < at:
                continue
            if run.first > at:
                made.append(Run(at, run.first - 1, State.AVAILABLE))
            made.append(run.part(at, run.last))
            at = run.last + 1
        self.start, self.end, self.runs = _settled(joined(made), start, at)

    # ---- what it shows

    @property
    def next_offset(self) -> int:
        """Where the next fetch reads: the first available offset, or the end."""
        return next((run.first for run in self.runs if run.state is State.AVAILABLE), self.end)

    def has_room(self, limits: Limits) -> bool:
        """Whether anything may be acquired: what is available again, or new records."""
        return self.next_offset < self.end or self.end - self.start < limits.in_flight

    @property
    def complete(self) -> int:
        """Offsets from the start on whose delivery is complete."""
        return sum(run.size for run in self.runs if run.state.done)

    def next_deadline(self) -> float | None:
        """When the first lock ends; None: nothing is acquired."""
        return min((run.deadline for run in self.runs if run.state is State.ACQUIRED), default=None)

    def stored(self) -> tuple[Run, ...]:
        """The offsets from the start on as they are stored: as if nothing were acquired now."""
        return tuple(joined(each for run in self.runs if (each := _unacquired(run)).deliveries or each.state.done))

    # ---- events

    def acquire(
        self,
        member: str,
        batches: Sequence[tuple[int, int]],
        most: int,
        limits: Limits,
        now: float,
        *,
        mode: Mode = Mode.BATCH_OPTIMIZED,
        batch_size: int = 0x7FFFFFFF,
        skipped: Sequence[tuple[int, int]] = (),
    ) -> Change:
        """A member has fetched record batches (first and last offsets, in order) and wants at most so many of their records.

        What it gets comes back as pieces of the same delivery count, of about `batch_size` records when batches are whole.
        `skipped` are offsets between or behind the batches that hold nothing to deliver: they are archived on the way.
        """
        runs, end = self.runs, self.end
        gap: list[Run] = []
        pieces: list[Run] = []
        left = most
        for first, last, records in sorted([*((*b, True) for b in batches), *((*s, False) for s in skipped)]):
            if left <= 0:
                break
            if not records:
                there = within(runs, max(first, self.start), min(last, end - 1)) if runs else ()
                gap += [run._replace(state=State.ARCHIVED) for run in there if run.state is State.AVAILABLE]
                if last >= end:
                    gap.append(Run(end, last, State.ARCHIVED))
                    end = last + 1
                continue
            for run in within(runs, max(first, self.start), min(last, end - 1)) if runs else ():
                if run.state is State.AVAILABLE and (left > 0 or mode is Mode.BATCH_OPTIMIZED):
                    piece = run if mode is Mode.BATCH_OPTIMIZED else run.part(run.first, run.first + left - 1)
                    pieces.append(piece)
                    left -= piece.size
            if last < end or left <= 0:
                continue
            room = limits.in_flight - (end - self.start)
            if room <= 0:
                break
            new = max(first, end)
            if new > end:
                gap.append(Run(end, new - 1, State.ARCHIVED))
            piece = Run(new, last, State.AVAILABLE)
            if mode is Mode.RECORD_LIMIT:
                piece = piece.part(new, new + min(left, room) - 1)
            pieces.append(piece)
            left -= piece.size
            end = piece.last + 1
        if not pieces and not gap:
            return Change(self.runs, self.start, self.end)
        taken = [
            piece._replace(
                state=State.ACQUIRED, deliveries=piece.deliveries + 1, member=member, deadline=now + limits.lock_seconds
            )
            for piece in pieces
        ]
        for piece in sorted([*gap, *taken]):
            runs = overlaid(runs, piece)
        return self._change(runs, end, gap, _portions(taken, batch_size))

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], limits: Limits, now: float
    ) -> Change:
        """A member is done with records that it has acquired, or wants to keep them longer. All or nothing: raises Refused."""
        runs, before = self.runs, -1
        stored: list[Run] = []
        for each in acknowledgements:
            _check(each, before)
            before = each.last
        for each in acknowledgements:
            if each.last < self.start:
                continue
            if not self.runs:
                raise Refused(errors.INVALID_RECORD_STATE, "Batch record not found: nothing is in flight.")
            if each.last >= self.end:
                raise Refused(
                    errors.INVALID_REQUEST, "Batch record not found: the last offset is past acquired records."
                )
            for first, last, kind in _spans(each):
                for run in within(runs, max(first, self.start), last):
                    if run.state is not State.ACQUIRED or run.member != member:
                        text = f"Offset {run.first} cannot be acknowledged: it is not acquired by the member."
                        raise Refused(errors.INVALID_RECORD_STATE, text)
                    after = _acknowledged(run, kind, limits, now)
                    runs = overlaid(runs, after)
                    if kind is not Ack.RENEW:
                        stored.append(after)
        return self._change(runs, self.end, stored)

    def release(self, member: str, limits: Limits) -> Change:
        """A member's session has ended: what it has acquired is available again."""
        return self._released(
            [run for run in self.runs if run.state is State.ACQUIRED and run.member == member], limits
        )

    def tick(self, limits: Limits, now: float) -> Change:
        """Time has passed: locks may have ended."""
        return self._released([r for r in self.runs if r.state is State.ACQUIRED and r.deadline <= now], limits)

    def log_started(self, offset: int) -> Change:
        """The partition begins later now (retention, DeleteRecords): records before that are gone, acquired or not."""
        if offset <= self.start:
            return Change(self.runs, self.start, self.end)
        end = max(self.end, offset)
        return self._change(list(within(self.runs, offset, end - 1)), end, [], start=offset)

    def make(self, change: Change) -> None:
        """Make a change that is stored."""
        self.runs, self.start, self.end = change.runs, change.start, change.end

    def _released(self, held: list[Run], limits: Limits) -> Change:
        runs = self.runs
        after = [_released(run, limits) for run in held]
        for run in after:
            runs = overlaid(runs, run)
        return self._change(runs, self.end, after)

    def _change(
        self,
        runs: list[Run],
        end: int,
        stored: list[Run],
        acquired: list[Acquired] | None = None,
        start: int | None = None,
    ) -> Change:
        start, end, runs = _settled(runs, self.start if start is None else start, end)
        update = None
        if stored or start != self.start:
            batches = tuple(joined(run.part(start, run.last) for run in sorted(stored) if run.last >= start))
            complete = sum(run.size for run in runs if run.state.done)
            update = Update(start if start != self.start else -1, batches, complete)
        return Change(runs, start, end, update, acquired or [])


def _settled(runs: list[Run], start: int, end: int) -> tuple[int, int, list[Run]]:
    """Start, end and runs without those at the beginning that are done."""
    done = 0
    for run in runs:
        if not run.state.done:
            break
        done += 1
        start = run.last + 1
    return start, end, runs[done:]


def _unacquired(run: Run) -> Run:
    if run.state is not State.ACQUIRED:
        return run
    return Run(run.first, run.last, State.AVAILABLE, run.deliveries - 1)


def _released(run: Run, limits: Limits) -> Run:
    state = State.ARCHIVED if run.deliveries >= limits.deliveries else State.AVAILABLE
    return Run(run.first, run.last, state, run.deliveries)


def _acknowledged(run: Run, kind: Ack, limits: Limits, now: float) -> Run:
    if kind is Ack.RENEW:
        return run._replace(deadline=now + limits.lock_seconds)
    if kind is Ack.RELEASE:
        return _released(run, limits)
    return Run(run.first, run.last, State.ACKNOWLEDGED if kind is Ack.ACCEPT else State.ARCHIVED, run.deliveries)


def _check(each: Acknowledgement, before: int) -> None:
    """The form of an acknowledgement behind another one. Raises Refused (KafkaApis.validateAcknowledgementBatches)."""
    if not before < each.first <= each.last:
        text = f"Acknowledgements must be in order: {each.first} to {each.last} comes after {before}."
        raise Refused(errors.INVALID_REQUEST, text)
    if len(each.types) not in (1, each.last - each.first + 1):
        text = (
            f"Expected one type or one for each of {each.last - each.first + 1} offsets; there are {len(each.types)}."
        )
        raise Refused(errors.INVALID_REQUEST, text)
    if unknown := set(each.types) - set(Ack):
        raise Refused(errors.INVALID_REQUEST, f"Unknown acknowledge types: {sorted(unknown)}.")


def _spans(each: Acknowledgement) -> list[tuple[int, int, Ack]]:
    """Offsets with the same type as one."""
    if len(each.types) == 1:
        return [(each.first, each.last, Ack(each.types[0]))]
    spans: list[tuple[int, int, Ack]] = []
    for offset, kind in enumerate(each.types, each.first):
        if spans and spans[-1][2] == kind:
            spans[-1] = (spans[-1][0], offset, Ack(kind))
        else:
            spans.append((offset, offset, Ack(kind)))
    return spans


def _portions(taken: list[Run], batch_size: int) -> list[Acquired]:
    """Pieces as they are answered: neighbours of one count together, up to about so many records each."""
    made: list[Acquired] = []
    for run in sorted(taken):
        last = made[-1] if made else None
        if (
            last
            and last.last + 1 == run.first
            and last.deliveries == run.deliveries
            and last.last - last.first + 1 + run.size <= batch_size
        ):
            made[-1] = last._replace(last=run.last)
        else:
            made.append(Acquired(run.first, run.last, run.deliveries))
    return made
