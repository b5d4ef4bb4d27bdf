"""The checkpoints of queries in a data folder: which one a query has, which were put aside, and putting one aside."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

from millstream.settings import Settings
from millstream.settings.files import sync_folder


def place(data: Path) -> str:
    """Return a data folder in words that mean the same elsewhere: "host:/folder"."""
    return f"{socket.gethostname()}:{data.absolute()}"


def checkpoint(settings: Settings, app: str, query: str) -> Path:
    """Return the folder of a query's checkpoint: offsets, commits and state."""
    return settings.checkpoint_root / app / query


def aside(settings: Settings, app: str, query: str) -> Path:
    """Return where a query's checkpoint goes when another takes its place; the time is added. On the checkpoint's own disk."""
    root = settings.checkpoints / ".replaced" if settings.checkpoints else settings.data.absolute() / "replaced"
    return root / app / query


def query_id(checkpoint: Path) -> str | None:
    """Return the id of a checkpoint; None when there is none, or no query has used it yet."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def earlier(settings: Settings, app: str, query: str) -> frozenset[str]:
    """Return the ids of the query's checkpoints that were put aside because the user asked to begin again."""
    there = aside(settings, app, query)
    ids = (query_id(folder) for folder in there.parent.glob(f"{query}-2*"))
    return frozenset(found for found in ids if found is not None)


def put_aside(settings: Settings, app: str, query: str) -> Path | None:
    """Move a query's checkpoint to where `aside` says, on disk when it returns; None when there is none.

    Nothing may run in the data folder. The query then begins at the beginning.
    """
    where = checkpoint(settings, app, query)
    if not where.is_dir():
        return None
    to = aside(settings, app, query)
    to = to.with_name(f"{to.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    to.parent.mkdir(parents=True, exist_ok=True)
    where.rename(to)
    for folder in (to.parent, where.parent):
        sync_folder(folder)
    return to
