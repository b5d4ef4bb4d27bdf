"""The contract of a sink: a person or system that rows reach one by one.

A kind of sink is a class of `app.outputs` (what is declared), which names a module of `deliver.sinks` that has

    def connect(delivery: Delivery, kafka: Kafka) -> Sink
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from millstream.deliver.seen import Origin

ORIGIN = "origin"  # header of candidates and of what is delivered: the causes, see `Origin`
QUERY = "query"  # header that tells one query's rows from another's in the same topic: the candidates' topic
MAX_OPEN = 5_000  # rows on their way; no candidate is read beyond, so a sink that is away fills no memory


class Interrupted(Exception):
    """The log or the sink broke off (a lost producer, a lost topic): another session, begun as after a crash, may go on."""


@dataclass(frozen=True)
class Row:
    """A candidate to be delivered.

    partition, offset: where it stands among the candidates.   origin: its identity, and `header` the text that it came with.
    headers: all others.   raised: when Spark wrote it, in epoch seconds.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    origin: Origin
    header: bytes
    raised: float


@dataclass(frozen=True)
class Place:
    """Where a delivered row stands in the sink. Within a partition offsets rise in the order of writing."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Written:
    """A row that was delivered before, by this process or an earlier one."""

    origin: Origin
    place: Place


Done = Callable[
    [Place, float], None
]  # where the row stands, and the seconds from handing it over to its acknowledgement


class Sink(Protocol):
    """A sink of one delivery. Used by one thread: `lacking`, `written_before`, `open`, then `send`, `poll`, `flush`, `close`.

    to: its name, as the status has it: a topic's own.
    What a sink cannot do for good it raises as MillstreamError, what a new session may mend as Interrupted or Unreachable.
    """

    @property
    def to(self) -> str: ...

    def lacking(self) -> str:
        """Return what is not there yet and will come ("topic late"), "" when nothing is lacking."""

    def written_before(self, tail: Mapping[int, int]) -> Iterator[Written]:
        """Yield what was written at and after the offsets of `tail`, in order by partition; all of a partition that it lacks."""

    def open(self) -> None:
        """Connect: rows come from now on."""

    def send(self, row: Row, done: Done) -> None:
        """Hand a row over. `poll` or `flush` call `done` once it is safe there, in the order of writing by partition."""

    def poll(self, seconds: float) -> None:
        """Wait at most so long for acknowledgements; raise what has failed."""

    def flush(self, seconds: float) -> None:
        """Wait at most so long until all that was handed over is acknowledged; raise what has failed."""

    def close(self) -> None:
        """Let go; what is under way is left to its fate, as in a crash."""
