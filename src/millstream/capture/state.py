"""What a capture remembers between runs, in one JSON file per application and source, replaced atomically.

    {"version": 1, "system": "7…/1" (the source's identity: of PostgreSQL the cluster's identifier and timeline),
     "database": "ops", "confirmed": 12345 (the highest position that the source was told to forget, 0 before the first),
     "tables": {"planes": {"relation": "public.planes", "topic_id": "…", "copied": false, "after": ["N101"] (the last key
       copied, in text), "rows": 20000, "sweep": {"0": 17} (offsets before which the topic holds rows of an earlier life),
       "key": ["tailnum"], "columns": {"tailnum": "1:text"},
       "ends": {"0": 20100} (where the topic ended when this was written: with fewer messages it has lost some),
       "reason": "its key was changed" (why it is copied, "" for a table that is new)}}}

A lost or older file is harmless: what it does not know is copied again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.settings import MillstreamError
from millstream.settings.files import replace

VERSION = 1


class TableState(msgspec.Struct, omit_defaults=True):
    """How far the copy of a table is, and of which table and topic this is said."""

    relation: str = ""
    topic_id: str = ""
    copied: bool = False
    after: list[str] | None = None
    rows: int = 0
    sweep: dict[int, int] = {}
    key: list[str] = []
    columns: dict[str, str] = {}
    ends: dict[int, int] = {}
    reason: str = ""

    def restart(self, sweep: dict[int, int] | None, reason: str = "") -> None:
        """Copy the table from its first row.

        sweep: the topic's end offsets, before which its rows may be gone by now; None when the log told of every deletion.
        """
        self.copied, self.after, self.rows, self.reason = False, None, 0, reason
        if sweep is not None:
            self.sweep = sweep

    def lost(self, ends: Mapping[int, int]) -> str:
        """Return what is missing of a topic that ends at `ends`, in words; "" when it has all that it had."""
        short = {p: (ends.get(p, 0), end) for p, end in self.ends.items() if ends.get(p, 0) < end}
        return ", ".join(f"partition {p} ends at offset {now} instead of {end}" for p, (now, end) in short.items())


class State(msgspec.Struct):
    """See the top of this file."""

    version: int = VERSION
    system: str = ""
    database: str = ""
    confirmed: int = 0
    tables: dict[str, TableState] = {}


class StateFile:
    """The file of a State."""

    def __init__(self, folder: Path, app: str, source: str) -> None:
        self.folder = folder
        self._path = folder / f"{app}-{source}.json"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def load(self) -> State:
        """Return the state, an empty one when there is none. Raises MillstreamError for a file of a newer version."""
        try:
            state = msgspec.json.decode(self._path.read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except msgspec.DecodeError as error:
            raise MillstreamError(
                f"{self._path} is not a state of a capture ({error}). Remove it to copy the tables again."
            ) from error
        if state.version != VERSION:
            raise MillstreamError(
                f"{self._path} has version {state.version}, expected {VERSION}; a newer Millstream wrote it. Remove it to copy"
                " the tables again."
            )
        return state

    def save(self, state: State) -> None:
        """Replace the file; after a crash it is the old one or the new one."""
        replace(self._path, msgspec.json.encode(state))
