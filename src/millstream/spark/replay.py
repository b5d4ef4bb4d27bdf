"""Moving a query: its position is its Spark checkpoint, so another position means another checkpoint.

`millstream groups reset` leaves a marker; the process that runs Spark obeys it when it starts next, before any query does:
the old checkpoint is put aside, never deleted, and a new one is begun that holds nothing but where to read from. With that a
query begins without state: a view is emptied, in one transaction with its first batch, and filled from the new position on; a
stream writes its results again; an alert's repeats are recognised and left out.

The marker (version 1): <data>/replays/<app>/<query>.json, {"version": 1, "at": ISO, "offsets": {topic: {partition: offset}}}.
The old checkpoint: <data>/replaced/<app>/<query>-<time of the marker>, or <checkpoints>/.replaced/… where checkpoints have
a folder of their own, since it is moved by renaming it.
The new one: the initial offsets of the query's only source, in the form of Spark's KafkaSourceInitialOffsetWriter (a zero byte,
"v1", a line's end, the offsets as JSON); partitions that it does not name are read from their beginning.

A crash between any two steps does no harm: the marker goes last, and obeying it twice comes to the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from millstream.settings import MillstreamError, Settings
from millstream.settings.files import replace, sync_folder
from millstream.stores.folder import aside, checkpoint

VERSION = 1
Offsets = Mapping[tuple[str, int], int]


def query_of(settings: Settings, group: str) -> tuple[str, str] | None:
    """Return application and query of a group whose checkpoint, or whose marker, is there; else None."""
    app, _, query = group.partition(".")
    if not query or "/" in group or ".." in group:
        return None
    there = checkpoint(settings, app, query).is_dir() or _marker(settings.data, app, query).exists()
    return (app, query) if there else None


def mark(data: Path, app: str, query: str, offsets: Offsets) -> Path:
    """Leave the marker, on disk when it returns; it replaces an earlier one. Returns its path."""
    path = _marker(data, app, query)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"version": VERSION, "at": datetime.now(UTC).isoformat(), "offsets": _by_topic(offsets)}
    replace(path, json.dumps(content).encode())
    return path


def obey(settings: Settings, app: str, starts: Callable[[set[str]], Offsets] = lambda topics: {}) -> dict[str, Offsets]:
    """Do what the markers say; return the new positions by query. Nothing of the application's queries may run.

    starts: says where the topics begin now. Retention may have passed a position since the marker was left, and Spark refuses to
    begin where nothing is any more.
    Raises MillstreamError for a marker that cannot be read: starting anyway would go on where nobody wants it.
    """
    done: dict[str, Offsets] = {}
    for path in sorted((settings.data / "replays" / app).glob("*.json")):
        at, offsets = _read(path)
        first = starts({topic for topic, _ in offsets})
        offsets = {place: max(offset, first.get(place, 0)) for place, offset in offsets.items()}
        query = path.stem
        where = checkpoint(settings, app, query)
        if where.exists():
            to = aside(settings, app, query)
            _put_aside(where, to.with_name(f"{to.name}-{at:%Y%m%dT%H%M%S.%fZ}"))
        _begin(where, offsets)
        path.unlink()
        sync_folder(path.parent)
        done[query] = offsets
    return done


def _put_aside(old: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.exists():
        # Here we were stopped before the marker went: what stands in the place is a beginning that no query has used.
        shutil.rmtree(old)
        return
    old.rename(to)
    sync_folder(to.parent)


def _begin(where: Path, offsets: Offsets) -> None:
    fresh = where.with_name(f".{where.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    source = fresh / "sources" / "0"
    source.mkdir(parents=True)
    replace(source / "0", b"\0v1\n" + json.dumps(_by_topic(offsets), separators=(",", ":")).encode())
    fresh.rename(where)
    sync_folder(where.parent)


def _read(path: Path) -> tuple[datetime, dict[tuple[str, int], int]]:
    try:
        content = json.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        offsets = {(t, int(p)): int(offset) for t, parts in content["offsets"].items() for p, offset in parts.items()}
        return datetime.fromisoformat(content["at"]).astimezone(UTC), offsets
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MillstreamError(
            f"{path} cannot be read ({error}): it should say where a query starts again. Remove it to go on where the query"
            " was, or give `millstream groups reset` again."
        ) from error


def _marker(data: Path, app: str, query: str) -> Path:
    return data / "replays" / app / f"{query}.json"


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found
