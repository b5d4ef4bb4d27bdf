"""The contract of a store: tables that queries keep, each batch written exactly once, by one owner.

A store is a module that has the functions of `Store`; an application's `StoredTable` names it. Another store is another module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from millstream.settings import Settings
from millstream.stores import folder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Claim:
    """A run that wants to keep a view.

    place: "host:/folder" of its data folder.   earlier: ids of checkpoints of this query that `millstream groups reset` and
    `millstream views rebuild` put aside there: the user has asked to begin again after those.
    """

    app: str
    query: str
    place: str
    query_id: str | None = None  # of the query's checkpoint; None before there is one
    earlier: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings, app: str, query: str) -> Claim:
        """Return the claim of the run with these settings."""
        current = folder.query_id(folder.checkpoint(settings, app, query))
        return cls(app, query, folder.place(settings.data), current, folder.earlier(settings, app, query))


@dataclass(frozen=True)
class Owner:
    """Who keeps a view, and how far it has come.

    query_id, batch_id, at: the checkpoint, and the last batch written and when.   place, since: from where, and when it began to
    (None in a store that an earlier version has written).   active: it is connected now.
    rebuild: the user has given the view to the next run that begins at the beginning.
    """

    app: str
    view: str
    query: str
    query_id: str
    batch_id: int
    at: datetime | None = None
    place: str | None = None
    since: datetime | None = None
    active: bool = False
    rebuild: bool = False

    def describe(self) -> str:
        """Return it in words."""
        text = f"query {self.query!r} of application {self.app!r}"
        if self.place:
            text += f" in {self.place}"
        if self.since:
            text += f", since {self.since:%Y-%m-%d %H:%M:%S %Z}"
        text += f", checkpoint {self.query_id}, last batch {self.batch_id}"
        if self.at:
            text += f" at {self.at:%Y-%m-%d %H:%M:%S %Z}"
        return text + (", connected now" if self.active else ", not connected now")


@dataclass(frozen=True)
class Stored:
    """A table that is there. rows: how many, None when not counted.   owner: None when no batch was ever written."""

    app: str
    name: str
    owner: Owner | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of a view, newest first.   values: a tuple a row.   key: the columns whose values name a row."""

    columns: tuple[str, ...]
    values: Sequence[tuple[Any, ...]] = field(repr=False)
    key: tuple[str, ...]
    to_arrow: Callable[[], pa.Table] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.values)

    def rows(self) -> list[dict[str, Any]]:
        """Return them as Python values by column name."""
        return [*self]

    def arrow(self) -> pa.Table:
        """Return them as an Arrow table, each column in its own type also where it is empty."""
        return self.to_arrow()

    def pandas(self) -> pd.DataFrame:
        """Return them as a pandas DataFrame."""
        return self.to_arrow().to_pandas()


class Kept(Protocol):
    """A table that this process keeps. Used by one thread at a time."""

    def apply(self, rows: pa.Table, *, query_id: str, batch_id: int, whole: bool = False) -> int | None:
        """Write a batch as a whole, once: rows replace those of their key. None: it was there already, nothing is written.

        whole: the rows are all that the table is to hold: others are removed.

        Raises MillstreamError when the table belongs to somebody else, or a value cannot be held; then nothing is written.
        """

    def close(self) -> None:
        """Let go of connections; `apply` makes new ones."""


class Store(Protocol):
    """What the module of a store has. `settings` have its address."""

    def keep(
        self, settings: Settings, name: str, schema: pa.Schema, key: Sequence[str], claim: Claim, application: str = ""
    ) -> Kept:
        """Make the table of a view, or bring it up to `schema`, and return it. Raises MillstreamError as `apply` does."""

    def check(self, app: str, name: str, schema: pa.Schema, key: Sequence[str]) -> None:
        """Raise MillstreamError when no table can hold such rows. Asks nobody."""

    def read(
        self,
        settings: Settings,
        app: str,
        name: str,
        *,
        limit: int | None = None,
        where: Mapping[str, object] | None = None,
    ) -> Rows:
        """Return the rows of a view, newest first. Raises MillstreamError when there is none.

        where: the values that columns must have; None for no value.
        """

    def tables(self, settings: Settings, app: str | None = None, *, count: bool = False) -> list[Stored]:
        """Return the tables of an application, or of all."""

    def rebuild(self, settings: Settings, app: str, name: str) -> None:
        """Give a view to the next run that begins at the beginning, which empties and refills it."""

    def drop(self, settings: Settings, app: str, name: str) -> None:
        """Remove a view's table and its owner."""
