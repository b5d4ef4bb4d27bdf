"""A toy sink, declared and carried out by this file alone, takes part in a real delivery."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from millstream.app.query import Delivery
from millstream.client.admin import ensure_topic
from millstream.client.producer import producer
from millstream.deliver.alerts import run
from millstream.deliver.sink import Done, Place, Row, Written
from millstream.settings import Kafka
from tests.brokers import fresh, running_broker, wait_until

HELD: list[tuple[Row, Written]] = []


@dataclass(frozen=True)
class ListSink:
    """Declares it."""

    kind: ClassVar[str] = "list"
    deliver: ClassVar[str] = __name__

    def describe(self) -> str:
        return "a list"


class Listed:
    """Carries it out: a list that outlives its sessions."""

    to = "a list"

    def __init__(self) -> None:
        self._waiting: list[tuple[Row, Done]] = []

    def lacking(self) -> str:
        return ""

    def written_before(self, tail: Mapping[int, int]) -> Iterator[Written]:
        return (w for _, w in HELD[tail.get(0, 0) :])

    def open(self) -> None: ...

    def send(self, row: Row, done: Done) -> None:
        self._waiting.append((row, done))

    def poll(self, seconds: float) -> None:
        for row, done in self._waiting:
            place = Place(0, len(HELD))
            HELD.append((row, Written(row.origin, place)))
            done(place, 0.0)
        self._waiting.clear()

    def flush(self, seconds: float) -> None:
        self.poll(seconds)

    def close(self) -> None: ...


def connect(delivery: Delivery, kafka: Kafka) -> Listed:
    return Listed()


@pytest.mark.system
def test_a_sink_of_another_kind_is_a_module(tmp_path: Path) -> None:
    HELD.clear()
    with running_broker(tmp_path / "data") as kafka:
        app = fresh("app")
        delivery = Delivery("q", f"_{app}.q", f"{app}.q.deliver", ListSink())
        ensure_topic(kafka, delivery.candidates, 1, {})
        sending = producer(kafka)
        for expected in (3, 5):  # the second run is given the first one's candidates again
            for n in range(expected):
                sending.produce(delivery.candidates, value=str(n), headers=[("origin", f"t-0-{n}")])
            sending.flush(10)
            stop, ready = threading.Event(), threading.Event()
            thread = threading.Thread(
                target=run,
                args=(app, [delivery], kafka),
                kwargs={"ready": lambda _, ready=ready: ready.set(), "stop": stop},
            )
            thread.start()
            assert ready.wait(30)
            wait_until(lambda: len(HELD) == expected, "all delivered")  # noqa: B023
            stop.set()
            thread.join(30)
    assert [row.value for row, _ in HELD] == [str(n).encode() for n in range(5)]
