"""The real parts that the replay's tests run on: a broker that can be killed, a database, and capture between them."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

from millstream import capture
from millstream.app.inputs import Table
from millstream.app.sources import postgres
from millstream.capture.postgres.source import opened
from millstream.client.admin import ensure_topic
from millstream.client.tail import tail
from millstream.settings import Kafka, Settings

DEADLINE_S = 60.0


def eventually(condition, what, within=DEADLINE_S):
    """Wait until `condition()` is true, and return what it was."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.01)
    return found


class Child:
    """A child process of a test; `line` is what it printed as `ready {json}`."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,  # its end would mean that the parent is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self.errors = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.errors.append(line.decode())

    def ready(self):
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), f"{line!r}\n{''.join(self.errors)}"
        return json.loads(line.removeprefix("ready "))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wait(self):
        code = self.process.wait(DEADLINE_S)
        self._reader.join()
        return code


class Broker:
    """The embedded broker in a process of its own, always at the same address."""

    def __init__(self, folder):
        self.folder = folder
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        self.child = Child("-m", "millstream.broker", "--data", str(self.folder), "--listen", self.address)
        self.address = self.child.ready()["kafka"]

    @property
    def kafka(self):
        return Kafka(self.address)

    def kill(self):
        self.child.kill()

    def stop(self):
        self.child.process.terminate()
        self.child.wait()


def replayer(kafka, ops, *options):
    """Start the replayer in a process of its own."""
    settings = Settings(kafka=kafka, sources={"ops": ops})
    return Child("-m", "millstream.demo.replay", *options, **settings.environment())


def stored(kafka, topics):
    """Return what each partition holds."""
    found = {}
    for topic in topics:
        for message in tail(kafka, topic, "earliest", follow=False):
            found.setdefault((topic, message.partition), []).append((message.key, message.value))
    return found


@contextmanager
def capturing(kafka, ops, folder):
    """While inside, the topic `planes` follows the table. folder: where capture keeps its state."""
    stop, ready, failures = threading.Event(), threading.Event(), []
    planes = Table("planes", postgres("ops", table="planes"))
    opening = partial(opened, "flights", "ops", ops)

    def follow():
        try:
            capture.run(
                "flights",
                "ops",
                opening,
                [planes],
                kafka,
                state=folder,
                ready=lambda facts: ready.set(),
                stop=stop,
            )
        except Exception as error:
            failures.append(error)
            ready.set()

    ensure_topic(kafka, "planes", 2, {"cleanup.policy": "compact"})
    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(DEADLINE_S)
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failures:
            raise failures[0]
