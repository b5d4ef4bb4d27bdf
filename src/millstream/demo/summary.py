"""The summary at the end of the demo: what went in and came out, how fast, and whether all of it is right."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import sql

from millstream.app import App
from millstream.app.names import STATUS
from millstream.client.admin import end_offsets, topic_names
from millstream.client.tail import Message, tail
from millstream.demo import checks
from millstream.demo.batch import FlightKey, expected
from millstream.demo.checks import Check, Enriched, ViewRow
from millstream.demo.data import at
from millstream.demo.options import Options
from millstream.demo.plane import NEW_MODEL, QUERY
from millstream.demo.sequence import DEPARTURES, TOPICS, Replay, busiest_plane
from millstream.monitor import catchup
from millstream.monitor.status import read as read_status
from millstream.settings import Kafka, MillstreamError, redact

if TYPE_CHECKING:
    from rich.console import RenderableType

VIEW, STREAM, ALERT = "delay_by_hour", QUERY, "very_late"  # the functions of flights.py
STATUS_S = 15.0  # how long the queries' last status may take after their last result

Partition = tuple[str, int]
Timestamps = Mapping[Partition, Sequence[int]]  # epoch milliseconds by offset


class _Flight(msgspec.Struct):
    """What the summary reads of an enriched departure or an alert; Spark leaves out what is null."""

    carrier: str
    flight: int
    origin: str
    scheduled_at: datetime
    tailnum: str | None = None
    model: str | None = None
    name: str | None = None

    @property
    def key(self) -> FlightKey:
        return self.carrier, self.flight, self.origin, self.scheduled_at


@dataclass(frozen=True)
class Latency:
    """Milliseconds between an event's entry into the log and its result, over `count` results. note: what is measured."""

    what: str
    count: int
    p50: float
    p90: float
    p99: float
    most: float
    note: str


@dataclass(frozen=True)
class Summary:
    """What a demo did; `ok` says whether every check holds.

    input_seconds: from the first event sent to the last. result_seconds: from the first event sent to the last result.
    events_per_second: of the input, through everything: until the last result.
    """

    days: int
    events_in: int
    input_seconds: float
    result_seconds: float
    events_per_second: float
    topics: dict[str, int]
    view_rows: int
    repeats: int
    dead_letters: dict[str, int]
    dropped: dict[str, int | None]
    latencies: list[Latency]
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is right."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain JSON-able values."""
        return {"ok": self.ok, **asdict(self)}


def summarize(
    app: App,
    options: Options,
    kafka: Kafka,
    views: str,
    *,
    progress: Callable[[str], None] = lambda text: None,
    stop: threading.Event | None = None,
    patience: float = catchup.PATIENCE_S,
) -> Summary:
    """Wait until every query has worked off the input, read all results, and compare them with the batch computation.

    views: connection string of the store of views. Raises MillstreamError when a query does not get on for `patience` seconds,
    when `stop` is set, or a result cannot be read.
    """
    stop = stop or threading.Event()
    progress("waiting for the queries to reach the end of the input")
    if not catchup.wait(
        kafka, app.name, catchup.inputs(app), catchup.candidates(app), stop, progress=progress, patience=patience
    ):
        raise MillstreamError("stopped before the results were complete; there is no summary.")
    facts = _settled_facts(app, kafka, stop)
    progress("computing the expected results from the CSV files")
    ends = end_offsets(kafka, TOPICS)
    replay = options.replay({topic: sum(t == topic for t, _ in ends) for topic in TOPICS})
    want = expected(options.days)
    plane = busiest_plane(replay, want.models)
    inputs, bad, later = _expected_input(replay, plane)

    progress("reading the results")
    sent = {partition: stamps for topic in TOPICS for partition, stamps in _timestamps(kafka, topic).items()}
    rows = _view(app, views)
    enriched_ms: list[int] = []
    alerts_ms: list[int] = []
    stream_check, repeats = checks.enriched(
        want, _enriched(kafka, app.queries[STREAM].output.to, sent, later, enriched_ms), plane, NEW_MODEL
    )
    alerts = Counter(f.key for f, _ in _flights(kafka, app.queries[ALERT].output.to, sent, alerts_ms))
    letters = _dead_letters(kafka, app)
    history = _history(kafka, app.name, VIEW)

    began, ended = _range(sent)
    finished = max([ended, *(int(at_s * 1000) for at_s, _ in history), *_last(kafka, app)])
    events = sum(len(stamps) for stamps in sent.values())
    return Summary(
        days=options.days,
        events_in=events,
        input_seconds=(ended - began) / 1000,
        result_seconds=(finished - began) / 1000,
        events_per_second=events / max(0.001, (finished - began) / 1000),
        topics=_counts(kafka, app),
        view_rows=len(rows),
        repeats=repeats,
        dead_letters=dict(sorted(Counter(letters.values()).items())),
        dropped={query: facts.get(query, {}).get("dropped") for query in app.queries},
        latencies=[
            latency(f"alert {ALERT}", alerts_ms, "from the departure's entry into the log to the alert's"),
            latency(f"stream {STREAM}", enriched_ms, "from the departure's entry into the log to the enriched one's"),
            latency(
                f"view {VIEW}",
                visible(history, {p: stamps for p, stamps in sent.items() if p[0] == DEPARTURES}),
                "from the departure's entry into the log until the query's status, told once a second, says it is done: at most",
            ),
        ],
        checks=[
            checks.stored(inputs, {partition: len(stamps) for partition, stamps in sent.items()}),
            checks.view(want.hours, rows),
            *stream_check,
            checks.alerts(want.late, alerts),
            checks.dead_letters(bad, letters),
            checks.dropped(app.queries, facts),
        ],
    )


def latency(what: str, milliseconds: Sequence[int], note: str) -> Latency:
    """Return the percentiles (nearest rank) of some latencies; zeros when there are none."""
    ordered = sorted(milliseconds)

    def rank(q: float) -> float:
        return float(ordered[min(len(ordered) - 1, int(q * len(ordered)))]) if ordered else 0.0

    return Latency(what, len(ordered), rank(0.5), rank(0.9), rank(0.99), rank(1.0), note)


def visible(history: Sequence[tuple[float, Mapping[Partition, int]]], sent: Timestamps) -> list[int]:
    """Return for each event how long it took, at most, until its query had said that it was done with it, in milliseconds.

    history: the times (epoch seconds) at which the query reported, with its next offset in each partition, in their order.
    sent: when each event entered the log. An event without a report behind it is left out.
    """
    found = []
    for partition, stamps in sent.items():
        reports = [(offsets[partition], at_s) for at_s, offsets in history if partition in offsets]
        nexts = [offset for offset, _ in reports]
        for offset, stamp in enumerate(stamps):
            if (first := bisect_right(nexts, offset)) < len(nexts):
                found.append(max(0, round(reports[first][1] * 1000) - stamp))
    return found


def render(summary: Summary) -> RenderableType:
    """Return the summary for a person's terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    topics = Table("topic", "messages", box=None, pad_edge=False)
    topics.columns[1].justify = "right"
    for name, count in summary.topics.items():
        topics.add_row(name, f"{count:,}")
    times = Table("latency", "results", "p50", "p90", "p99", "max", box=None, pad_edge=False)
    for column in times.columns[1:]:
        column.justify = "right"
    for number, item in enumerate(summary.latencies, 1):
        values = (item.p50, item.p90, item.p99, item.most)
        times.add_row(f"{item.what} ({number})", f"{item.count:,}", *(f"{v:,.0f} ms" for v in values))
    notes = [Text(f"({number}) {item.note}", "dim") for number, item in enumerate(summary.latencies, 1)]
    results = Table("", "check", "", box=None, pad_edge=False, show_header=False)
    for check in summary.checks:
        results.add_row(Text("✓", "green") if check.ok else Text("✗", "bold red"), check.name, check.text)
        for example in check.examples:
            results.add_row("", "", Text(example, "red"))
    letters = Table("dead letters", "reason", box=None, pad_edge=False)
    letters.columns[0].justify = "right"
    for reason, count in summary.dead_letters.items():
        letters.add_row(f"{count:,}", Text(reason, no_wrap=True, overflow="ellipsis"))
    verdict = (
        Text("Everything is right.", "bold green")
        if summary.ok
        else Text(f"{sum(not c.ok for c in summary.checks)} checks failed.", "bold red")
    )
    return Group(
        Text(
            f"{summary.days} days of flights: {summary.events_in:,} events sent in {summary.input_seconds:,.1f} s, the last"
            f" result after {summary.result_seconds:,.1f} s: {summary.events_per_second:,.0f} per second through everything",
            "bold",
        ),
        Text(),
        topics,
        Text(),
        times,
        *notes,
        Text(),
        letters,
        Text(),
        results,
        verdict,
    )


def _settled_facts(app: App, kafka: Kafka, stop: threading.Event) -> dict[str, Mapping[str, Any]]:
    """Return what each query last said, once it has said something about its dropped rows at the end of its input."""
    rounds = int(STATUS_S / 0.25)
    for _ in range(rounds):
        facts = {name: said for (kind, name), said in read_status(kafka, app.name).items() if kind == "query"}
        ends = end_offsets(kafka, app.topics)
        if all(_reached(facts.get(q.name, {}), {i.name for i in q.streams}, ends) for q in app.queries.values()):
            break
        stop.wait(STATUS_S / rounds)
    return dict(facts)


def _reached(facts: Mapping[str, Any], topics: set[str], ends: Mapping[Partition, int]) -> bool:
    offsets = _offsets(facts)
    return facts.get("dropped") is not None and all(
        offsets.get(partition, 0) >= end for partition, end in ends.items() if partition[0] in topics
    )


def _offsets(facts: Mapping[str, Any]) -> dict[Partition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in (facts.get("offsets") or {}).items()
        for partition, offset in partitions.items()
    }


def _expected_input(replay: Replay, plane: str) -> tuple[dict[Partition, int], set[str], set[FlightKey]]:
    """Return the messages per partition, the origins of the malformed ones, and the plane's departures after its change."""
    counts = {(topic, p): 0 for topic in TOPICS for p in range(replay.partitions[topic])}
    bad, later = set(), set()
    for slot in replay.slots():
        counts[slot.topic, slot.partition] += 1
        if slot.bad is not None:
            bad.add(f"{slot.topic}-{slot.partition}-{slot.offset}")
        elif slot.topic == DEPARTURES and slot.flight.tailnum == plane and slot.number >= replay.half:
            later.add((slot.flight.carrier, slot.flight.flight, slot.flight.origin, at(slot.flight.scheduled)))
    return counts, bad, later


def _timestamps(kafka: Kafka, topic: str) -> dict[Partition, array[int]]:
    """Return when each message entered the log, by offset."""
    stamps: dict[Partition, array[int]] = {partition: array("q") for partition in end_offsets(kafka, [topic])}
    for message in tail(kafka, topic, "earliest", follow=False):
        known = stamps[topic, message.partition]
        if message.offset != len(known):
            raise MillstreamError(
                f"{topic} [{message.partition}] has no message at offset {len(known)}, the next is {message.offset}: its"
                " retention removed a part of the input, so the results cannot be checked."
            )
        known.append(message.timestamp)
    return stamps


def _range(sent: Timestamps) -> tuple[int, int]:
    filled = [stamps for stamps in sent.values() if stamps]
    if not filled:
        raise MillstreamError(f"the topics {' and '.join(TOPICS)} are empty: nothing was replayed.")
    return min(min(stamps) for stamps in filled), max(max(stamps) for stamps in filled)


def _flights(kafka: Kafka, topic: str, sent: Timestamps, took: list[int]) -> Iterator[tuple[_Flight, Message]]:
    """Yield the flights of an output topic, and add to `took` the milliseconds since their causes were sent."""
    if topic not in topic_names(kafka):
        return
    decoder = msgspec.json.Decoder(_Flight)
    for message in tail(kafka, topic, "earliest", follow=False):
        try:
            flight = decoder.decode(message.value or b"")
        except msgspec.DecodeError as error:
            raise MillstreamError(
                f"{topic} [{message.partition}] holds at offset {message.offset} no flight: {error}."
            ) from error
        cause = dict(message.headers).get("origin")
        if cause and (stamp := _stamp(cause.decode(), sent)) is not None:
            took.append(max(0, message.timestamp - stamp))
        yield flight, message


def _stamp(origin: str, sent: Timestamps) -> int | None:
    topic, partition, offset = origin.rsplit("-", 2)
    stamps = sent.get((topic, int(partition)), ())
    return stamps[int(offset)] if int(offset) < len(stamps) else None


def _enriched(kafka: Kafka, topic: str, sent: Timestamps, later: set[FlightKey], took: list[int]) -> Iterator[Enriched]:
    for flight, _ in _flights(kafka, topic, sent, took):
        yield Enriched(flight.key, flight.tailnum, flight.model, flight.name, flight.key in later)


def _dead_letters(kafka: Kafka, app: App) -> dict[str, str]:
    """Return the reason of each dead letter, by its origin."""
    if app.dead_letters not in topic_names(kafka):
        return {}
    found = {}
    for message in tail(kafka, app.dead_letters, "earliest", follow=False):
        letter = msgspec.json.decode(message.value or b"{}")
        found[(message.key or b"").decode()] = str(letter.get("reason"))
    return found


def _history(kafka: Kafka, app: str, query: str) -> list[tuple[float, dict[Partition, int]]]:
    """Return when a query reported which offsets, as far as the status topic still holds it."""
    found = []
    for message in tail(kafka, STATUS, "earliest", follow=False):
        if message.key == f"{app}/query/{query}".encode() and message.value:
            facts = msgspec.json.decode(message.value)
            if offsets := _offsets(facts):
                found.append((float(facts["at"]), offsets))
    return found


def _view(app: App, conninfo: str) -> dict[tuple[str, datetime], ViewRow]:
    try:
        with psycopg.connect(conninfo) as connection:
            rows = connection.execute(
                sql.SQL("SELECT origin, hour_start, flights, mean_delay, p90_delay FROM {}").format(
                    sql.Identifier(app.name, VIEW)
                )
            ).fetchall()
    except psycopg.Error as error:
        raise MillstreamError(
            f"the view {app.name}.{VIEW} cannot be read from {redact(conninfo)}: {str(error).strip()}."
        ) from error
    return {(origin, hour.astimezone(UTC)): ViewRow(flights, mean, p90) for origin, hour, flights, mean, p90 in rows}


def _outputs(app: App) -> list[str]:
    topics = (t for q in app.queries.values() for t in q.output.topics(app.name, q))
    return [t.name for t in topics if t.role != "internal"]


def _counts(kafka: Kafka, app: App) -> dict[str, int]:
    existing = set(topic_names(kafka))
    names = [n for n in (*app.topics, *app.tables, *_outputs(app), app.dead_letters) if n in existing]
    ends = end_offsets(kafka, names)
    return {name: sum(end for (topic, _), end in ends.items() if topic == name) for name in names}


def _last(kafka: Kafka, app: App) -> list[int]:
    """Return the time of the last message of each partition of the outputs."""
    existing = set(topic_names(kafka))
    return [m.timestamp for topic in _outputs(app) if topic in existing for m in tail(kafka, topic, -1, follow=False)]
