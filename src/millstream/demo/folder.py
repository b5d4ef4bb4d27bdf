"""The demo's data folder: a run that was interrupted continues there, one that finished makes room for a new one.

demo.json (version 1): {"version": 1, "days", "bad", "seed": what is replayed, "finished": whether its summary was made}.
Only a folder with this file is ever emptied.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.demo.options import Options
from millstream.run.lock import FILE as LOCK
from millstream.run.lock import Lock
from millstream.run.restarts import Pace
from millstream.run.takeover import take_over
from millstream.settings import MillstreamError
from millstream.settings.files import replace

FILE = "demo.json"
VERSION = 1


@dataclass(frozen=True)
class Record:
    """What a data folder says about the demo in it."""

    days: int
    bad: int
    seed: int
    finished: bool = False

    @classmethod
    def of(cls, options: Options) -> Record:
        """Return the record of a run that begins."""
        return cls(options.days, options.bad, options.seed)


def decide(record: Record | None, options: Options) -> Literal["begin", "resume", "again"]:
    """Say what to do: begin in an empty folder, go on with an interrupted run of the same input, or empty the folder first."""
    if record is None:
        return "begin"
    return "resume" if record == Record.of(options) else "again"


def take(data: Path, options: Options, say: Callable[[str], None]) -> bool:
    """Make room for a run, which `begin` then records; return whether an interrupted run continues in the folder.

    Raises MillstreamError when the folder holds something else than a demo, or is in use.
    """
    record = read(data)
    if record is None and data.is_dir() and any(entry.name != LOCK for entry in data.iterdir()):
        raise MillstreamError(
            f"the data folder {data} holds something else than a demo, which is left alone. Choose another with --data."
        )
    choice = decide(record, options)
    if choice == "again":
        assert record is not None
        if not record.finished:
            say(f"an interrupted demo of {record.days} days in {data} is discarded: this one replays another input")
        _empty(data, say)
    elif choice == "resume":
        say(f"going on with the interrupted demo in {data}")
    return choice == "resume"


def begin(data: Path, options: Options) -> None:
    """Record a run that begins or continues."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(data, Record.of(options))
    except OSError as error:
        raise MillstreamError(
            f"the data folder {data} cannot be written: {error.strerror}. Choose another with --data."
        ) from error


def finish(data: Path, options: Options) -> None:
    """Note that the run has its summary: the next one begins again."""
    _write(data, Record(options.days, options.bad, options.seed, finished=True))


def read(data: Path) -> Record | None:
    """Return the record in the folder, None when there is none; a record that cannot be understood counts as finished."""
    try:
        found = json.loads((data / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return Record(0, 0, 0, finished=True)
    if not isinstance(found, dict) or found.pop("version", None) != VERSION:
        return Record(0, 0, 0, finished=True)
    try:
        return Record(**found)
    except TypeError:
        return Record(0, 0, 0, finished=True)


def _empty(data: Path, say: Callable[[str], None]) -> None:
    """Remove everything, the record last, so that an interruption leaves a folder that is still the demo's."""
    lock = Lock(data)
    try:
        take_over(data, Pace(), say)
        for entry in data.iterdir():
            if entry.name in (LOCK, FILE):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (data / FILE).unlink()
    except OSError as error:
        raise MillstreamError(
            f"the finished demo in {data} cannot be removed: {error.strerror} ({error.filename}). Remove it yourself, or"
            " choose another folder with --data."
        ) from error
    finally:
        lock.release()


def _write(data: Path, record: Record) -> None:
    replace(data / FILE, json.dumps({"version": VERSION, **vars(record)}).encode())
