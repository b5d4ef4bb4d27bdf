"""Watching consumer groups: their distance, when retention will overtake them, a warning before and a report after.

What the watcher finds goes to the topic `_millstream.lag` (JSON values, the latest per key, a week):

- key "lag/<group>": {"kind": "lag", "group", "at": epoch seconds, "lag", "bytes", "seconds", "loss_in", "partitions":
  [{"topic", "partition", "committed", "start", "end", "lag", "bytes", "seconds", "span", "loss_in", "by"}]}; of the group the
  sums, and the worst of the times. Written when it has changed, at most each PUBLISH_S. bytes are estimates; loss_in null: never.
- key "warning/<group>/<topic>/<partition>": {"kind": "warning", "group", "at", "state": "open" or "over", "text", …}, and the
  fields of the partition.
- key "loss/<group>/<topic>/<partition>/<id>": {"kind": "loss", "group", "topic", "partition", "at", "first", "until",
  "possible", "events", "over", "text"}: offsets from `first` up to and without `until` were deleted before the group had
  committed them; up to `possible` that cannot be told. Until `over` the loss may grow.

What was told is read back at the start, so a watcher that is started again repeats nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from typing import Any

import msgspec
from confluent_kafka import KafkaException, Producer

from millstream.app.names import LAG
from millstream.client.admin import ensure_topic, topic_names
from millstream.client.consumer import json_object
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.monitor.behind import Behind, Meter
from millstream.monitor.forecast import Forecast, History, Retention, forecast
from millstream.monitor.losses import Loss, Losses
from millstream.settings import Kafka, MillstreamError

FIRST_S = 1.0  # after the first two measurements: before the third no pace is worth much
IDLE_S = 15.0  # between measurements where nothing is in a hurry: a dozen small requests
SOON_S = 0.5  # and where it is most
PARTS = 10.0  # so many measurements in what a topic keeps, or in the time that is left
PUBLISH_S = 15.0  # the shortest time between two messages with a group's figures
SEND_S = 5.0  # how long messages may take before they count as not written
CALM = 3  # measurements without urgency before a warning is over: one good moment is none
MAX_LOSSES = 1000  # that are remembered and shown; the oldest go
FRESH_S = 60.0  # published figures older than this are no longer the present

Key = tuple[str, str, int]  # group, topic, partition

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Figure:
    """A group in one partition: how far it is behind, and the forecast (None: nothing to lose)."""

    behind: Behind
    forecast: Forecast | None = None

    @property
    def loss_in(self) -> float | None:
        """Seconds until the first loss, None for never."""
        return self.forecast.seconds if self.forecast and isfinite(self.forecast.seconds) else None

    def facts(self) -> dict[str, Any]:
        """Return the figure as the topic and the commands have it, without its group."""
        facts = {k: v for k, v in asdict(self.behind).items() if k != "group"}
        return {**facts, "loss_in": self.loss_in, "by": self.forecast.by if self.loss_in is not None else None}  # type: ignore[union-attr]


@dataclass(frozen=True)
class Snapshot:
    """What was found last. missed: offsets that each group has missed in each partition since the watcher began."""

    at: float = 0.0
    figures: tuple[Figure, ...] = ()
    missed: Mapping[Key, int] = field(default_factory=dict)
    warnings: frozenset[Key] = frozenset()


@dataclass
class _Followed:
    """What is known of one group in one partition."""

    history: History = field(default_factory=History)
    losses: Losses = field(default_factory=Losses)
    warned: bool = False
    calm: int = 0
    counted: dict[int, int] = field(default_factory=dict)  # by id of the loss
    missed: int = 0


class Judge:
    """Turns measurements into figures, warnings and losses. No I/O: `take` returns what is to be told, by key."""

    def __init__(self) -> None:
        self._followed: dict[Key, _Followed] = defaultdict(_Followed)
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}
        self.snapshot = Snapshot()
        self.pause = IDLE_S
        self._takes = 0

    def know(self, value: Mapping[str, Any]) -> None:
        """Take what an earlier watcher told: warnings and losses that are not over are not told again."""
        if value["kind"] == "lag":
            return
        key = (value["group"], value["topic"], value["partition"])
        if value["kind"] == "warning" and value["state"] == "open":
            self._followed[key].warned = True
        elif value["kind"] == "loss" and not value["over"]:
            loss = Loss(value["id"], value["first"], value["until"], value["possible"], over=False)
            self._followed[key].losses.open = loss
            self._followed[key].counted[loss.id] = loss.certain

    def take(
        self,
        at: float,
        measured: Sequence[Behind],
        retentions: Mapping[str, Retention],
        size: Callable[[str, int], float | None],
    ) -> dict[str, dict[str, Any]]:
        """Take a measurement; return the messages to write, by key. `size`: bytes of a message in (topic, partition)."""
        found: dict[str, dict[str, Any]] = {}
        figures: dict[Key, Figure] = {}
        for behind in measured:
            key = (behind.group, behind.topic, behind.partition)
            followed = self._followed[key]
            sample = behind.sample(at, size(behind.topic, behind.partition))
            followed.history.add(sample)
            limits = retentions.get(behind.topic, Retention())
            figures[key] = Figure(behind, forecast(followed.history.samples, limits))
            found |= self._losses(at, key, followed, followed.losses.take(sample))
        # A group of which we have warned needs no hurry: it is those that come near which must not be missed.
        self.pause = pause((f for key, f in figures.items() if not self._followed[key].warned), retentions.values())
        self._takes += 1
        if self._takes < 3:
            self.pause = min(self.pause, FIRST_S)
        for key, figure in figures.items():
            found |= self._warning(at, key, self._followed[key], figure)
        for key in self._followed.keys() - figures.keys():
            if self._followed.pop(key).warned:
                found |= _over(at, key, {})
        self.snapshot = Snapshot(
            at,
            tuple(figures.values()),
            {key: f.missed for key, f in self._followed.items()},
            frozenset(key for key, f in self._followed.items() if f.warned),
        )
        return found | self._groups(at, list(figures.values()))

    def _warning(self, at: float, key: Key, followed: _Followed, figure: Figure) -> dict[str, dict[str, Any]]:
        urgent = figure.forecast is not None and figure.forecast.urgent(self.pause)
        followed.calm = 0 if urgent else followed.calm + 1
        if urgent == followed.warned or (followed.warned and followed.calm < CALM):
            return {}
        followed.warned = urgent
        if not urgent:
            return _over(at, key, figure.facts())
        opened = {"kind": "warning", "state": "open", "group": key[0], "at": round(at, 3)}
        return {f"warning/{key[0]}/{key[1]}/{key[2]}": {**opened, **figure.facts(), "text": in_words(figure)}}

    def _losses(self, at: float, key: Key, followed: _Followed, losses: Iterable[Loss]) -> dict[str, dict[str, Any]]:
        told = {}
        for loss in losses:
            before = followed.counted.get(loss.id, 0)
            followed.missed += max(0, loss.certain - before)
            followed.counted[loss.id] = max(before, loss.certain)
            if loss.over:
                del followed.counted[loss.id]
            told[f"loss/{key[0]}/{key[1]}/{key[2]}/{loss.id}"] = {
                "kind": "loss",
                "group": key[0],
                "topic": key[1],
                "partition": key[2],
                "at": round(at, 3),
                **asdict(loss),
                "events": loss.certain,
                "text": missed_in_words(key, loss),
            }
        return told

    def _groups(self, at: float, figures: Sequence[Figure]) -> dict[str, dict[str, Any]]:
        by_group: dict[str, list[Figure]] = defaultdict(list)
        for figure in figures:
            by_group[figure.behind.group].append(figure)
        self._told = {group: told for group, told in self._told.items() if group in by_group}
        found = {}
        for group, own in by_group.items():
            facts = {**total(own), "partitions": [f.facts() for f in own]}
            told_at, told = self._told.get(group, (-inf, {}))
            if facts != told and at - told_at >= PUBLISH_S:
                self._told[group] = (at, facts)
                found[f"lag/{group}"] = {"kind": "lag", "group": group, "at": round(at, 3), **facts}
        return found


def total(figures: Sequence[Figure]) -> dict[str, Any]:
    """Return a group's sums and worst times over its partitions; None where no partition has a value."""
    behinds = [f.behind for f in figures]
    sizes = [b.bytes for b in behinds if b.bytes is not None]
    return {
        "lag": sum(b.lag for b in behinds),
        "bytes": sum(sizes) if sizes else None,
        "seconds": max((b.seconds for b in behinds if b.seconds is not None), default=None),
        "loss_in": min((f.loss_in for f in figures if f.loss_in is not None), default=None),
    }


def pause(figures: Iterable[Figure], retentions: Iterable[Retention]) -> float:
    """Return the seconds until the next measurement: the sooner something may be lost, the sooner."""
    spans = [r.seconds for r in retentions if r.seconds is not None]
    for figure in figures:
        if figure.forecast is not None and figure.behind.committed >= figure.behind.start:
            spans += [figure.forecast.seconds, figure.forecast.at_rest, figure.forecast.horizon]
    return min(IDLE_S, max(SOON_S, min(spans, default=inf) / PARTS))


def in_words(figure: Figure) -> str:
    """Return the warning for people."""
    b = figure.behind
    key = (b.group, b.topic, b.partition)
    if b.committed < b.start:
        return f"group {b.group} is missing events: {_place(key)} begins at {b.start}, and it stands at {b.committed}"
    assert figure.forecast is not None
    seconds = figure.forecast.seconds if isfinite(figure.forecast.seconds) else figure.forecast.at_rest
    why = {"time": "retention.ms", "size": "retention.bytes", "start": "the pace at which the log's start moves"}
    return (
        f"group {b.group} may begin to miss events of {_place(key)} in {seconds:.0f} s, by {why[figure.forecast.by]}:"
        f" it stands at {b.committed}, {b.lag:,} events behind. Start or speed up its consumers, or raise the retention."
    )


def missed_in_words(key: Key, loss: Loss) -> str:
    """Return the report of a loss for people."""
    more = (
        f"; {loss.possible - loss.until:,} more, up to offset {loss.possible - 1}, perhaps"
        if loss.possible > loss.until
        else ""
    )
    if not loss.certain:
        if not more:
            return f"group {key[0]} has missed nothing of {_place(key)} from offset {loss.id}: it had read what was deleted"
        return f"group {key[0]} has perhaps missed events of {_place(key)}: offsets {loss.first} to {loss.possible - 1}"
    return (
        f"group {key[0]} has missed {loss.certain:,} events of {_place(key)}: offsets {loss.first} to {loss.until - 1}"
        f" were deleted before it had committed them{more}{'' if loss.over else '; it has not gone on yet'}"
    )


def _over(at: float, key: Key, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The message that ends a warning. facts: where the group is now; empty for one that is gone."""
    group, topic, partition = key
    over = {
        "kind": "warning",
        "state": "over",
        "group": group,
        "at": round(at, 3),
        "topic": topic,
        "partition": partition,
    }
    text = f"group {group} is no longer in danger of missing events of {_place(key)}"
    return {f"warning/{group}/{topic}/{partition}": {**over, **facts, "text": text}}


def _place(key: Key) -> str:
    return f"{key[1]} [{key[2]}]"


class Watcher:
    """Measures in a thread and writes to the topic. `snapshot` is replaced, never changed in place.

    groups: which to measure; None for every group of the log.
    """

    def __init__(self, kafka: Kafka, groups: Sequence[str] | None = None) -> None:
        self.snapshot = Snapshot()
        self._kafka = kafka
        self._groups = groups
        self._stop = threading.Event()
        self._judge = Judge()
        self._unsent: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._run, name="millstream-lag", daemon=True)

    def start(self) -> Watcher:
        """Begin; returns at once."""
        self._thread.start()
        return self

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, waiting at most `timeout` seconds for a log that is silent."""
        self._stop.set()
        self._thread.join(timeout)

    def __enter__(self) -> Watcher:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        client: Producer | None = None
        failing = False
        with Meter(self._kafka) as meter:
            while not self._stop.is_set():
                try:
                    if client is None:
                        ensure_topic(self._kafka, LAG)
                        for value in read(self._kafka).values:
                            if self._groups is None or value.get("group") in self._groups:
                                self._judge.know(value)
                        client = producer(self._kafka, linger_ms=0)
                    self._measure(meter, client)
                    failing = False
                except (MillstreamError, KafkaException) as error:
                    if not failing and not self._stop.is_set():
                        _log.warning("lag is not measured, trying again: %s", error)
                    failing = True
                except Exception:  # a mistake of ours must not end the watching for good
                    _log.exception("measuring lag failed")
                self._stop.wait(IDLE_S if failing else self._judge.pause)

    def _measure(self, meter: Meter, client: Producer) -> None:
        at, measured = meter.measure(self._groups)
        retentions = meter.retention(b.topic for b in measured)
        found = self._judge.take(at, measured, retentions, meter.size)
        self.snapshot = self._judge.snapshot
        for value in found.values():
            if value["kind"] != "lag":
                _log.log(logging.WARNING if value.get("state") != "over" else logging.INFO, "%s", value["text"])
        self._unsent |= found  # what could not be written is written later, unless there is newer
        self._send(client)

    def _send(self, client: Producer) -> None:
        sent: set[str] = set()
        for key, value in self._unsent.items():
            client.produce(
                LAG,
                key=key,
                value=msgspec.json.encode(value),
                on_delivery=lambda error, _, key=key: None if error else sent.add(key),  # type: ignore[misc]
            )
        if client.flush(SEND_S):
            client.purge()
            client.flush(SEND_S)
        self._unsent = {key: value for key, value in self._unsent.items() if key not in sent}


@dataclass(frozen=True)
class Told:
    """What the topic says. lags: by group. warnings: those that are open. losses: the newest MAX_LOSSES, oldest first."""

    lags: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[dict[str, Any], ...] = ()
    losses: tuple[dict[str, Any], ...] = ()

    @property
    def values(self) -> tuple[dict[str, Any], ...]:
        """Warnings and losses."""
        return self.warnings + self.losses

    def loss_in(self, behind: Behind, now: float) -> float | None:
        """Return the forecast for a group in a partition, in seconds from `now`; None when there is no fresh one."""
        told = self.lags.get(behind.group)
        if told is None or now - told["at"] > FRESH_S or not behind.lag:
            return None
        for part in told["partitions"]:
            if (part["topic"], part["partition"]) == (behind.topic, behind.partition) and part["loss_in"] is not None:
                return max(0.0, float(part["loss_in"]) - (now - float(told["at"])))
        return None


def read(kafka: Kafka) -> Told:
    """Return what was told about the groups of a log. Creates nothing. Raises MillstreamError when the log does not answer."""
    if LAG not in topic_names(kafka):
        return Told()
    return told((m.key, m.value) for m in tail(kafka, LAG, "earliest", follow=False))


def told(messages: Iterable[tuple[bytes | None, bytes | None]]) -> Told:
    """Return what keys and values of the topic say, in their order; what is not ours says nothing."""
    latest: dict[str, dict[str, Any]] = {}
    for key, value in messages:
        name = (key or b"").decode(errors="replace")
        latest.pop(name, None)
        if (facts := json_object(value)) is None:
            continue
        try:
            msgspec.convert(facts, _Lag | _Warning | _Loss)
        except msgspec.ValidationError:
            continue  # nobody of ours wrote it
        latest[name] = facts
    of = {kind: [v for v in latest.values() if v["kind"] == kind] for kind in ("lag", "warning", "loss")}
    return Told(
        {v["group"]: v for v in of["lag"]},
        tuple(v for v in of["warning"] if v["state"] == "open"),
        tuple(of["loss"][-MAX_LOSSES:]),
    )


class _Part(msgspec.Struct):
    topic: str
    partition: int
    loss_in: float | None


class _Lag(msgspec.Struct, tag_field="kind", tag="lag"):
    """What readers rely on, of each kind of message."""

    group: str
    at: float
    partitions: list[_Part]


class _Warning(msgspec.Struct, tag_field="kind", tag="warning"):
    group: str
    topic: str
    partition: int
    at: float
    state: str
    text: str


class _Loss(msgspec.Struct, tag_field="kind", tag="loss"):
    group: str
    topic: str
    partition: int
    at: float
    id: int
    first: int
    until: int
    possible: int
    over: bool
    text: str
