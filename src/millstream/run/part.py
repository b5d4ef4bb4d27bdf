"""The parts of a running application as values: processes that stay, steps that end, and the order between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.app.process import Process
from millstream.settings import MillstreamError, Settings

HOPELESS = 78  # exit code (EX_CONFIG of sysexits.h): a mistake that the user must mend; starting again would not help


@dataclass(frozen=True)
class Context:
    """What a step's function gets: the settings with the addresses of everything that is ready, a way to tell how far it is,
    and the event that asks it to end early."""

    settings: Settings
    progress: Callable[[str], None]
    stop: threading.Event


@dataclass(frozen=True)
class Step:
    """Something to be done between parts, before others start: a command that ends with exit code 0, or a function.

    A function that raises MillstreamError ends the run with that message; anything else is tried again, like a process.
    after: names or kinds of the parts that must be ready first.   before: those that wait for this step.
    once: never again in this data folder once it succeeded; otherwise at every start of the supervisor.
    """

    name: str
    command: tuple[str, ...] = ()
    call: Callable[[Context], None] | None = field(default=None, compare=False, repr=False)
    after: frozenset[str] | set[str] = frozenset()
    before: frozenset[str] | set[str] = frozenset()
    once: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 5.0
    doing: str = "working"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.call):
            raise ValueError(f"step {self.name!r}: expected either a command or a function to call.")


Part = Process | Step


@dataclass(frozen=True)
class Arrangement:
    """Parts in an order in which they can start, with the names of those that each one waits for."""

    parts: tuple[Part, ...]
    needs: Mapping[str, frozenset[str]]

    def dependents(self, name: str) -> frozenset[str]:
        """Return all parts that directly or indirectly need `name`: they must have ended before it is asked to end."""
        found: set[str] = set()
        fresh = {name}
        while fresh:
            fresh = {p for p, needs in self.needs.items() if needs & fresh} - found
            found |= fresh
        return frozenset(found)

    def foundations(self, name: str) -> frozenset[str]:
        """Return all parts that `name` directly or indirectly needs."""
        return frozenset(p for p in self.needs if name in self.dependents(p))


def arrange(parts: Sequence[Part]) -> Arrangement:
    """Return the parts in starting order (the given order where it is free), with names for kinds and `before` turned around.

    Raises MillstreamError for two parts of one name, a need that no part has, or parts that wait for each other.
    """
    names = [p.name for p in parts]
    for name in names:
        if names.count(name) > 1:
            raise MillstreamError(f"there are two parts named {name!r}; give one of them another name.")
    needs: dict[str, set[str]] = {p.name: set() for p in parts}
    for part in parts:
        wanted = part.waits_for if isinstance(part, Process) else part.after
        for want in sorted(wanted):
            needs[part.name] |= _named(want, parts, part)
        for later in sorted(part.before) if isinstance(part, Step) else ():
            for name in _named(later, parts, part):
                needs[name].add(part.name)
    return Arrangement(_ordered(parts, needs), {name: frozenset(found) for name, found in needs.items()})


def _named(want: str, parts: Sequence[Part], by: Part) -> set[str]:
    found = {p.name for p in parts if p.name == want or (isinstance(p, Process) and p.kind == want)}
    if not found:
        known = ", ".join(p.name for p in parts if p is not by)
        raise MillstreamError(f"{by.name!r} names {want!r} in its order, which is not a part here; there are {known}.")
    return found - {by.name}


def _ordered(parts: Sequence[Part], needs: Mapping[str, set[str]]) -> tuple[Part, ...]:
    left, ordered, done = list(parts), [], set[str]()
    while left:
        part = next((p for p in left if needs[p.name] <= done), None)
        if part is None:
            raise MillstreamError(f"these parts wait for each other: {', '.join(p.name for p in left)}.")
        left.remove(part)
        ordered.append(part)
        done.add(part.name)
    return tuple(ordered)
