"""A client in a process of its own, which can be stopped and killed: `Member` in the test, and the program that obeys it.

The program reads commands, one JSON list a line, and answers each with one line: {"ok": …} or {"error": name}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.torture.loads import QUICK

ANSWER_S = 60.0


class Refused(Exception):
    """The client's call failed; the text is the error's name."""


class Member:
    """The process, from the test's side."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "tests.torture.member", address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._left = b""

    def tell(self, *command: object) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    def answer(self) -> Any:
        """The next answer. Raises Refused when it is an error."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._left:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer within {ANSWER_S:.0f} s"
            more = os.read(self.process.stdout.fileno(), 1 << 20)
            assert more, "the client's process has ended"
            self._left += more
        line, self._left = self._left.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def ask(self, *command: object) -> Any:
        """Give a command and wait for its answer."""
        self.tell(*command)
        return self.answer()

    def refused(self) -> str:
        """The error that the next answer must be."""
        try:
            answer = self.answer()
        except Refused as error:
            return str(error)
        raise AssertionError(f"expected an error, and it was done: {answer}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Client:
    """The program's side: what the commands do."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.producer: Producer | None = None
        self.consumer: Consumer | None = None
        self.failed: list[str] = []

    def transactional(self, name: str, timeout_ms: int) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": self.address,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 1,
                **QUICK,
            }
        )
        self.producer.init_transactions(20)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, values: list[str], flush: bool = True) -> int:
        """Write to partition 0; returns how many of all so far have failed."""

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self.failed.append(error.name())

        for value in values:
            self.producer.produce(topic, value, partition=0, on_delivery=told)
            self.producer.poll(0)
        if flush:
            self.producer.flush(20)
        return len(self.failed)

    def commit(self) -> None:
        self.producer.commit_transaction(20)

    def subscribe(self, topic: str, config: dict[str, Any]) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUICK,
                **config,
            }
        )
        self.consumer.subscribe([topic])

    def read(self, seconds: float, count: int = 1_000_000) -> list[tuple[int, int, str]]:
        """Partition, offset and value of what comes within some time."""
        found: list[tuple[int, int, str]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(found) < count:
            for message in self.consumer.consume(500, 0.05):
                if message.error() is None:
                    found.append((message.partition(), message.offset(), message.value().decode()))
        return found

    def store(self, offsets: list[tuple[int, int]], topic: str) -> None:
        """Commit next offsets."""
        self.consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in offsets], asynchronous=False)

    def assigned(self) -> list[int]:
        return [each.partition for each in self.consumer.assignment()]

    def leave(self) -> None:
        self.consumer.close()


def main() -> None:
    client = Client(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"ok": getattr(client, name)(*arguments)}
        except KafkaException as error:
            answer = {"error": error.args[0].name()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
