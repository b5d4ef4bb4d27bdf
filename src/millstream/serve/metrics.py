"""The console's /metrics: figures of topics and consumer groups in Prometheus' text format, version 0.0.4.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/. Who may read: a signed-in browser, or a program with the
token in `<data>/metrics.token` as `Authorization: Bearer …` (Prometheus: `authorization: {credentials_file: …}`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from millstream.monitor.watch import Snapshot
from millstream.serve.positions import Reading
from millstream.serve.state import PartState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOKEN = "metrics.token"

Labels = Mapping[str, object]


def metrics(groups: Snapshot, topics: Reading, captures: Sequence[PartState] = ()) -> str:
    """Return the page. Groups are as the watcher saw them last, topics as the console did (at most 15 s ago)."""
    behind = [(_labels(f.behind.group, f.behind.topic, f.behind.partition), f) for f in groups.figures]
    lines = [
        *_family(
            "group_lag_events",
            "gauge",
            "Offsets that the group has yet to read.",
            ((at, f.behind.lag) for at, f in behind),
        ),
        *_family(
            "group_lag_bytes",
            "gauge",
            "Bytes in them, estimated from samples.",
            ((at, f.behind.bytes) for at, f in behind),
        ),
        *_family(
            "group_lag_seconds", "gauge", "Age of the first of them.", ((at, f.behind.seconds) for at, f in behind)
        ),
        *_family(
            "group_loss_in_seconds",
            "gauge",
            "When retention overtakes the group at the present pace; absent: never.",
            ((at, f.loss_in) for at, f in behind),
        ),
        *_family(
            "group_in_danger",
            "gauge",
            "1 while a warning is open that the group may miss events.",
            ((at, int((f.behind.group, f.behind.topic, f.behind.partition) in groups.warnings)) for at, f in behind),
        ),
        *_family(
            "group_missed_events_total",
            "counter",
            "Offsets that were deleted before the group had committed them, since the console's start.",
            ((_labels(*key), count) for key, count in groups.missed.items()),
        ),
        *_family(
            "lag_measured_timestamp_seconds", "gauge", "When the groups were looked at.", [({}, groups.at or None)]
        ),
        *_family(
            "topic_end_offset",
            "counter",
            "The next offset to be written.",
            (({"topic": topic, "partition": p}, end) for (topic, p), end in sorted(topics.ends.items())),
        ),
        *_family(
            "topic_start_offset",
            "counter",
            "The first offset that is there.",
            (
                ({"topic": name, "partition": p}, start)
                for name, facts in sorted(topics.topics.items())
                for p, start in facts.start.items()
            ),
        ),
        *_captured("capture_lag_bytes", "Bytes of the source's log that are not stored yet.", captures, "lag_bytes"),
        *_captured("capture_lag_seconds", "Age of the first of them.", captures, "lag_seconds"),
        *_captured("capture_kept_bytes", "Bytes of its log that the source keeps for it.", captures, "kept_bytes"),
        *_captured("capture_left_bytes", "Bytes until the source removes some of them.", captures, "left_bytes"),
        *_captured(
            "capture_follower_lag_bytes", "Lag of the source's other followers.", captures, "followers", others=True
        ),
    ]
    return "\n".join(lines) + "\n"


def token(data: Path) -> str:
    """Return the token of a data folder, which is made once and kept in a file that only its owner may read."""
    path = data / TOKEN
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if found := path.read_text(encoding="ascii").strip():
            return found
        path.unlink()  # we were stopped before it was written
        return token(data)
    with open(fd, "w", encoding="ascii") as file:
        file.write(made := secrets.token_urlsafe(32))
    return made


def _captured(name: str, text: str, captures: Sequence[PartState], fact: str, *, others: bool = False) -> list[str]:
    """A gauge of each capture, or of each follower that a capture names."""
    found: list[tuple[Labels, float | None]] = []
    for capture in captures:
        if not others:
            found.append(({"source": capture.name}, _number(capture.facts.get(fact))))
        elif isinstance(behind := capture.facts.get(fact), Mapping):
            found += [({"source": capture.name, "follower": k}, _number(v)) for k, v in behind.items()]
    return _family(name, "gauge", text, found)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float | None]]) -> list[str]:
    """A metric with its samples; those that are None are left out."""
    name = f"millstream_{name}"
    found = [f"{name}{_braces(labels)} {value!r}" for labels, value in samples if value is not None]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *found]


def _labels(group: str, topic: str, partition: int) -> Labels:
    return {"group": group, "topic": topic, "partition": partition}


def _braces(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
