"""The checkpoints of queries in a data folder: which one a query has, which were put aside, and putting one aside."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path


def place(data: Path) -> str:
    """Return a data folder in words that mean the same elsewhere: "host:/folder"."""
    return f"{socket.gethostname()}:{data.absolute()}"


def checkpoint(data: Path, app: str, query: str) -> Path:
    """Return the folder of a query's checkpoint."""
    return data / "checkpoints" / app / query


def query_id(checkpoint: Path) -> str | None:
    """Return the id of a checkpoint; None when there is none, or no query has used it yet."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def earlier(data: Path, app: str, query: str) -> frozenset[str]:
    """Return the ids of the query's checkpoints that were put aside because the user asked to begin again."""
    ids = (query_id(folder) for folder in (data / "replaced" / app).glob(f"{query}-2*"))
    return frozenset(found for found in ids if found is not None)


def put_aside(data: Path, app: str, query: str) -> Path | None:
    """Move a query's checkpoint to <data>/replaced/<app>/<query>-<time>, on disk when it returns; None when there is none.

    Nothing may run in the data folder. The query then begins at the beginning.
    """
    where = checkpoint(data, app, query)
    if not where.is_dir():
        return None
    to = data / "replaced" / app / f"{query}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    to.parent.mkdir(parents=True, exist_ok=True)
    where.rename(to)
    for folder in (to.parent, where.parent):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return to
