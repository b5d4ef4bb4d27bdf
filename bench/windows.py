"""Records per CPU second of a windowed count over a backlog: Spark's own watermark beside the lowest of the partitions.

A count per key and ten seconds, in update mode, of JSON events of eight fields, strictly decoded. Both kinds run over the same
topic on one Spark session and the embedded broker, one after the other and by turns, after one run of each that does not count.
The CPU seconds are those of Spark's process: the broker and this one have no part in the difference.

    scripts/bench windows            or: python bench/windows.py --partitions 32 --events 400000 --repeats 5
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millstream as ms
from millstream.app.inputs import Topic
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.settings import Kafka, Settings
from millstream.spark.inputs.topic import by_partition, events, with_watermark
from millstream.spark.kafka import read_stream
from millstream.spark.session import session

KINDS = ("Spark's own", "by partition")
START = datetime(2026, 1, 1)


class Click(ms.Event):
    """About 150 bytes of JSON."""

    user: str
    page: str
    amount: float
    n: int
    ok: bool
    session: str
    referrer: str
    at: datetime


@contextmanager
def broker(folder: Path) -> Iterator[Kafka]:
    """Run the embedded broker."""
    command = [sys.executable, "-m", "millstream.broker", "--data", str(folder), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Kafka(json.loads(process.stdout.readline().removeprefix("ready "))["kafka"])
    finally:
        process.terminate()
        process.wait(60)


def fill(kafka: Kafka, topic: Topic, count: int) -> None:
    """Send the events, one partition after the other in turn, a millisecond apart."""
    ensure_topics(kafka, [(topic.name, topic.partitions, {})])
    client, chance = producer(kafka), random.Random(1)
    for i in range(count):
        at = (START + timedelta(milliseconds=i)).isoformat(timespec="milliseconds")
        value = (
            f'{{"user":"user{chance.randrange(1000)}","page":"/product/{i % 500}","amount":{i % 97 * 1.5},"n":{i},"ok":true,'
            f'"session":"s{i % 10000:08}","referrer":"search","at":"{at}Z"}}'
        )
        while True:
            try:
                client.produce(topic.name, value.encode(), partition=i % topic.partitions)
                break
            except BufferError:
                client.poll(0.1)
    client.flush()


def cpu_seconds(pid: int) -> float:
    """Return what a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(spark: SparkSession, kafka: Kafka, topic: Topic, kind: str, count: int) -> float:
    """Run the query over the whole topic and return its records per CPU second."""
    read = events(read_stream(spark, kafka, [topic.name]), topic)
    own = kind == KINDS[0]
    frame = with_watermark(read, topic) if own else by_partition(read, topic, "newest", range(topic.partitions))
    counts = frame.groupBy("user", ms.tumbling("at", "10 seconds")).agg(F.count("*").alias("n"))
    process = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    begin = cpu_seconds(process)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        query.processAllAvailable()
        query.stop()
    return count / (cpu_seconds(process) - begin)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="what the watermark by partition costs")
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    topic = Topic(
        "clicks", Click, event_time="at", lateness=timedelta(seconds=10), partitions=options.partitions, future=None
    )
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder) / "log") as kafka:
        fill(kafka, topic, options.events)
        spark = session("bench", Settings(data=Path(folder), cache=Settings.load().cache))
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for repeat in range(-1, options.repeats):
            for kind in KINDS if repeat % 2 else reversed(KINDS):
                rate = run(spark, kafka, topic, kind, options.events)
                if repeat >= 0:
                    found[kind].append(rate)
                    print(f"{kind:<14}{time.strftime('%X'):>10}{rate:>10,.0f} records per CPU second", flush=True)
        for kind, rates in found.items():
            low, middle, high = min(rates), statistics.median(rates), max(rates)
            print(f"{kind:<14}{options.partitions:>4} partitions  median {middle:,.0f}  ({low:,.0f} to {high:,.0f})")
        spark.stop()


if __name__ == "__main__":
    main()
