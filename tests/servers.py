"""Captures as processes that a test may kill, and what their topics hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from millstream.app.inputs import Table
from millstream.client.admin import end_offsets
from millstream.settings import Kafka

CAPTURE = """
import json, logging, signal, sys, threading, time
from pathlib import Path
from functools import partial
from millstream import capture
from millstream.capture.postgres.source import opened
from millstream.app.inputs import Table
from millstream.app.sources import PostgresTable
from millstream.settings.failpoints import tripped
from millstream.settings import Kafka
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
facts = json.loads(sys.argv[1])
stop = threading.Event()
for name, seconds in facts["held"].items():
    def hold(seconds=seconds, then=tripped.get(name, lambda: None)):
        time.sleep(seconds)
        then()
    tripped[name] = hold
signal.signal(signal.SIGTERM, lambda *_: stop.set())
tables = [Table(name, PostgresTable("ops", table, schema)) for name, schema, table in facts["tables"]]
opening = partial(opened, facts["app"], facts["source"], facts["conninfo"])
capture.run(facts["app"], facts["source"], opening, tables, Kafka(facts["kafka"]), state=Path(facts["state"]),
            ready=lambda more: print("ready", json.dumps(more), flush=True), stop=stop)
"""


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30.0) -> Any:
    """Return the first true value of `condition`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


class CaptureProcess:
    """A capture in a process of its own. held: seconds by failpoint, for which every pass of it is held up."""

    def __init__(
        self,
        app: str,
        conninfo: str,
        tables: Sequence[Table],
        kafka: Kafka,
        state: Path,
        failpoint: str = "",
        held: Mapping[str, float] | None = None,
    ) -> None:
        facts = {
            "app": app,
            "source": "ops",
            "conninfo": conninfo,
            "kafka": kafka.bootstrap,
            "state": str(state),
            "held": dict(held or {}),
            "tables": [(t.name, t.source.schema, t.source.table) for t in tables],
        }
        state.mkdir(parents=True, exist_ok=True)
        self._log = state / "capture.log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CAPTURE, json.dumps(facts)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"MILLSTREAM_FAILPOINT": failpoint},
            )

    def wait_ready(self) -> dict[str, Any]:
        """Wait for its line of readiness."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.log()
        facts: dict[str, Any] = json.loads(line.removeprefix("ready "))
        return facts

    def log(self) -> str:
        """What it, and those before it with the same state, logged."""
        return self._log.read_text()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def __enter__(self) -> CaptureProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def messages(kafka: Kafka, topic: str) -> list[tuple[Any, Any, int, int]]:
    """Return everything in a topic as (key, value, partition, offset), keys and values as JSON values."""
    ends = {p: end for (_, p), end in end_offsets(kafka, [topic]).items()}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    left = {p for p, end in ends.items() if end}
    found = []
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"topic {topic} cannot be read to its end {ends}"
        for message in consumer.consume(500, 0.2):
            if message.error() is not None:
                left.discard(message.partition())
                continue
            value, key = message.value(), message.key().decode()
            found.append(
                (
                    json.loads(key) if key.startswith("{") else key,
                    None if value is None else json.loads(value),
                    message.partition(),
                    message.offset(),
                )
            )
    consumer.close()
    return found


def latest(kafka: Kafka, topic: str) -> dict[str, Any]:
    """Return the rows that a topic holds in the end: `after` of each key's last message, by the key's JSON."""
    rows: dict[str, Any] = {}
    for key, value, _, _ in messages(kafka, topic):
        if value is None or value["after"] is None:
            rows.pop(json.dumps(key), None)
        else:
            rows[json.dumps(key)] = value["after"]
    return rows
