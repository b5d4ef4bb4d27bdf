"""Positions of queries whose topics change: one that the application lost, one that was deleted, one that was made again.

Spark's checkpoint knows topics by name alone. In it stands `topics.json`, version 1: {"version": 1, "topics": {name: id}}: the
ids (KIP-516) of the topics that the query reads. Before a query starts they are compared with those of the log.

A query without state begins a checkpoint of its own making: where it was in the topics that are the same, the start of those
that were made again, without those it no longer reads. The old checkpoint is put aside (<data>/replaced/<app>/<query>-<time>),
never deleted. At most the batch that was under way is read again. A query with state is not moved: its state belongs to
what is gone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, TopicCollection

from millstream.client.admin import start_offsets
from millstream.client.connect import TIMEOUT_S, admin, code, result
from millstream.settings import Kafka, MillstreamError, Unreachable
from millstream.settings.files import replace, sync_folder

VERSION = 1
FILE = "topics.json"

Source = Mapping[str, Mapping[str, int]]  # topic -> partition, as text -> next offset: one source of a query
Starts = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Change:
    """What differs from when the checkpoint was made. gone: topics read no more.   again: made again.   new: read now."""

    gone: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.gone or self.again)


def compare(sources: Sequence[Source], known: Mapping[str, str], now: Mapping[str, str]) -> Change:
    """Return what changed. sources: the checkpoint's.   known: its topics' ids.   now: ids of the topics that are read now."""
    read = {topic for source in sources for topic in source}
    again = {topic for topic, identity in now.items() if topic in read and known.get(topic, identity) != identity}
    return Change(frozenset(read - now.keys()), frozenset(again), frozenset(now.keys() - read))


def moved(sources: Sequence[Source], change: Change, starts: Starts) -> list[dict[str, dict[str, int]]]:
    """Return the sources' positions after a change. starts: the first offsets of the topics that were made again."""
    return [
        {
            topic: {str(p): offset for (t, p), offset in starts.items() if t == topic}
            if topic in change.again
            else dict(partitions)
            for topic, partitions in source.items()
            if topic not in change.gone
        }
        for source in sources
    ]


def keep(kafka: Kafka, checkpoint: Path, topics: Sequence[str], where: str, *, state: bool, aside: Path) -> None:
    """Make a query's checkpoint fit the topics that it reads now, or note them when there is none.

    where: the query, for messages.   state: the query keeps state, or a view that must hold nothing else.
    aside: where an old checkpoint goes; a time is added to the name.   The query must not run.
    Raises MillstreamError, with what to do, when a query with state cannot go on; Unreachable when the log does not answer.
    """
    fresh = _fresh(checkpoint)
    if fresh.exists() and not checkpoint.exists():  # stopped between the two renames of an earlier change
        fresh.rename(checkpoint)
    now = identities(kafka, topics)
    sources = positions(checkpoint)
    change = compare(sources, _known(checkpoint), now)
    if state:
        _refuse(change, sources, where, aside)
    if change:
        _replace(checkpoint, moved(sources, change, start_offsets(kafka, change.again)), aside)
    _note(checkpoint, now)


def check(checkpoint: Path, topics: Sequence[str], where: str, aside: Path) -> None:
    """Raise MillstreamError, as `keep` would, for a query with state that reads other topics than its checkpoint has.

    It asks no log, so it cannot tell a topic that was made again.
    """
    sources = positions(checkpoint)
    _refuse(compare(sources, {}, dict.fromkeys(topics, "")), sources, where, aside)


def _refuse(change: Change, sources: Sequence[Source], where: str, aside: Path) -> None:
    if change:
        raise MillstreamError(f"{where}: {_words(change)}. {_again(aside)}")
    if change.new and sources:
        raise MillstreamError(
            f"{where}: it now reads {_names(change.new)} too, which its state does not know. {_again(aside)}"
        )


def positions(checkpoint: Path) -> list[Source]:
    """Return where each source of a checkpoint stands after its last finished batch; empty for one that has none."""
    finished = [int(p.name) for p in (checkpoint / "commits").glob("*") if p.name.isdigit()]
    if not finished:
        return []
    lines = (checkpoint / "offsets" / str(max(finished))).read_text().splitlines()
    found: list[Source] = []
    for line in lines[2:]:  # behind the version and the batch's metadata
        offsets = json.loads(line) if line.startswith("{") else {}
        found.append({t: dict(p) for t, p in offsets.items() if isinstance(p, dict)})
    return found


def identities(kafka: Kafka, topics: Sequence[str]) -> dict[str, str]:
    """Return the ids of topics. Raises Unreachable when one does not exist (now), or the log does not answer."""
    if not topics:
        return {}
    futures = admin(kafka).describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
    found = {}
    for name, future in futures.items():
        try:
            found[name] = str(result(future, kafka, f"topic {name!r} cannot be described").topic_id)
        except MillstreamError as error:
            if code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Unreachable(
                    f"the topic {name!r} does not exist at {kafka.bootstrap}; `millstream run` makes it when it starts."
                ) from error
            raise
    return found


def _known(checkpoint: Path) -> dict[str, str]:
    try:
        content: dict[str, Any] = json.loads((checkpoint / FILE).read_text())
    except FileNotFoundError:  # of an earlier version: the names are all that is known
        return {}
    if content.get("version") != VERSION:
        raise MillstreamError(f"{checkpoint / FILE} is of version {content.get('version')}, expected {VERSION}.")
    return dict(content["topics"])


def _note(checkpoint: Path, identities: Mapping[str, str]) -> None:
    if _known(checkpoint) != identities:
        checkpoint.mkdir(parents=True, exist_ok=True)
        replace(
            checkpoint / FILE, json.dumps({"version": VERSION, "topics": dict(sorted(identities.items()))}).encode()
        )


def _replace(checkpoint: Path, sources: Sequence[Source], aside: Path) -> None:
    """Begin a checkpoint that holds nothing but where to read from (Spark's KafkaSourceInitialOffsetWriter)."""
    fresh = _fresh(checkpoint)
    shutil.rmtree(fresh, ignore_errors=True)
    for number, source in enumerate(sources):
        folder = fresh / "sources" / str(number)
        folder.mkdir(parents=True)
        replace(folder / "0", b"\0v1\n" + json.dumps(source, separators=(",", ":")).encode())
    aside.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.rename(aside.with_name(f"{aside.name}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"))
    fresh.rename(checkpoint)
    sync_folder(checkpoint.parent)


def _fresh(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}.new")


def _words(change: Change) -> str:
    parts = []
    if change.again:
        parts.append(f"the topic {_names(change.again)} was deleted and made again")
    if change.gone:
        parts.append(f"it no longer reads {_names(change.gone)}")
    return " and ".join(parts)


def _again(aside: Path) -> str:
    group = f"{aside.parent.name}.{aside.name}"
    return f"To begin again with what is there: `millstream groups reset {group} --to earliest`, and start the application again."


def _names(topics: frozenset[str]) -> str:
    return ", ".join(repr(t) for t in sorted(topics))
