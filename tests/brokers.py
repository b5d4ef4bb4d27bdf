"""A log for tests: ours in a subprocess, or the Apache Kafka whose address is in MILLSTREAM_TEST_KAFKA."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.client.wait import wait_for_kafka
from millstream.settings import Kafka

ADDRESS = os.environ.get("MILLSTREAM_TEST_KAFKA")
DEADLINE_S = 30.0


class Broker:
    """Our broker in a subprocess, on a port of its own that it keeps when it is started again."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.environment = environment
        self.settings = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
        self.process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"

    @property
    def kafka(self) -> Kafka:
        return Kafka(self.address)

    def start(self) -> "Broker":
        command = [sys.executable, "-m", "millstream.broker", "--data", str(self.folder), "--listen", self.address]
        command += self.settings
        with (self.folder.parent / "broker.log").open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )
        assert self.process.stdout is not None
        word, _, facts = self.process.stdout.readline().partition(" ")
        assert word == "ready", f"the broker did not start: {(self.folder.parent / 'broker.log').read_text()[-2000:]}"
        self.address = json.loads(facts)["kafka"]
        return self

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(DEADLINE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@contextmanager
def running_broker(folder: Path) -> Iterator[Kafka]:
    """Give a log to talk to."""
    if ADDRESS:
        wait_for_kafka(Kafka(ADDRESS), DEADLINE_S)
        yield Kafka(ADDRESS)
        return
    folder.mkdir(exist_ok=True)
    broker = Broker(folder).start()
    try:
        yield broker.kafka
    finally:
        broker.end()


def fresh(name: str) -> str:
    """A name that no earlier test has used on a log that outlives the tests."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def wait_until(condition, what: str, seconds: float = DEADLINE_S):
    """Return the condition's first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)
    return value
