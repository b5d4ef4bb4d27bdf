"""The sender: one producer's life, from what is stored to the end of the input or to the producer's failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import cached_property

from confluent_kafka import KafkaError, Message

from millstream.client.producer import producer
from millstream.demo.pacing import Clock, Pacer
from millstream.demo.plane import NEW_MODEL, QUERY, set_model, wait_for_model, wait_for_query
from millstream.demo.progress import Progress
from millstream.demo.resume import OtherInput, Partition, remaining
from millstream.demo.sequence import DEPARTURES, Replay, Slot, busiest_plane
from millstream.demo.tables import records
from millstream.settings import Kafka

STOP_S = 5.0  # how long the last messages may take when the replay is stopped
POLL_S = 0.1  # how soon a stop is noticed
_POLL_EVERY = 64  # messages between two looks at the delivery reports while nothing holds us back


class Interrupted(Exception):
    """The producer gave up a message; what the log holds says where to go on."""


class Sending:
    """Sends what is not stored. As a context manager: what is on its way at the end is taken back."""

    def __init__(
        self,
        replay: Replay,
        kafka: Kafka,
        ops: str,
        app: str,
        pacer: Pacer,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._replay, self._kafka, self._ops, self._app = replay, kafka, ops, app
        self._pacer, self._progress, self._stop = pacer, progress, stop
        # The pacer lets no more than an hour or two of flights be under way, so batches are small: waiting for more only delays.
        self._producer = producer(kafka, linger_ms=0.5, client_id="millstream.demo.replay")
        self._failure: Exception | None = None

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge(blocking=True)
        self._producer.flush(0)

    def everything(self, speed: float | None, stored: Mapping[Partition, int]) -> bool:
        """Send what is not stored, in order; return whether all of it was acknowledged (False: stopped before)."""
        clock: Clock | None = None
        changed = False
        self._progress.state("running")
        if not any(stored.values()):
            self._undo_former_change()
        for count, slot in enumerate(remaining(self._replay.slots(), stored)):
            if not changed and slot.number >= self._replay.half:
                self._change_plane()
                changed = True
            clock = clock or Clock(speed, slot.minute, time.monotonic())
            if not self._wait_until_due(slot, clock):
                break
            self._send(slot)
            if count % _POLL_EVERY == 0:
                self._poll(0)
        self._drain(STOP_S if self._stop.is_set() else None)
        if not changed and not self._stop.is_set():
            self._change_plane()  # everything was stored already: the change may have been lost with the database
        return not self._stop.is_set() and not self._pacer.waiting

    def _wait_until_due(self, slot: Slot, clock: Clock) -> bool:
        """Wait until the message may go; return False when stopped."""
        while not self._stop.is_set():
            if (wait := clock.wait(slot.minute, time.monotonic())) > 0:
                self._poll(min(wait, POLL_S))
            elif not self._pacer.may_send(slot.minute):
                self._poll(POLL_S)
            else:
                return True
        return False

    def _send(self, slot: Slot) -> None:
        def reported(error: KafkaError | None, message: Message) -> None:
            self._reported(slot, error, message.offset())

        key, value = self._replay.key(slot), self._replay.value(slot)
        self._pacer.sent(slot.number, slot.minute)
        self._progress.minute = slot.minute
        while True:
            try:
                self._producer.produce(slot.topic, value, key, slot.partition, on_delivery=reported)
                return
            except BufferError:
                self._poll(POLL_S)

    def _reported(self, slot: Slot, error: KafkaError | None, offset: int | None) -> None:
        """Take a delivery report. Nothing may be raised here: it would surface in the middle of the client."""
        if error is not None:
            self._failure = self._failure or Interrupted(f"{slot.topic} [{slot.partition}]: {error.str()}")
            return
        # A repeated request that the broker had stored already is acknowledged without an offset.
        if offset is not None and 0 <= offset != slot.offset:
            self._failure = OtherInput(
                f"a message for offset {slot.offset} of {slot.topic} [{slot.partition}] was stored at {offset}: something"
                " else writes to the topic. Is another demo running on the same log? Delete the topics departures and"
                " arrivals, or use another --data folder, and start again."
            )
            return
        self._pacer.acknowledged(slot.number)
        self._progress.sent += 1

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        if self._failure is not None:
            raise self._failure
        self._progress.tick()

    def _drain(self, limit: float | None = None) -> None:
        """Wait until everything is acknowledged; when stopped no longer than `limit` seconds."""
        deadline = None if limit is None else time.monotonic() + limit
        while self._pacer.waiting:
            self._poll(POLL_S)
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + STOP_S
                if time.monotonic() > deadline:
                    return

    @cached_property
    def _plane(self) -> tuple[str, str]:
        """The aircraft that changes, and its model in the data."""
        models = {str(row[0]): str(row[4]) for row in records("planes")}
        tailnum = busiest_plane(self._replay, models)
        return tailnum, models[tailnum]

    def _undo_former_change(self) -> None:
        """In a database that outlived an earlier demo the plane begins as it was, so that the change can be seen again."""
        tailnum, model = self._plane
        if set_model(self._ops, tailnum, model, only_if=NEW_MODEL):
            wait_for_model(self._kafka, tailnum, model, self._stop)

    def _change_plane(self) -> None:
        """Change the plane and wait until capture has followed. Everything before is stored, everything after comes later."""
        self._drain()
        if self._stop.is_set():
            return
        tailnum, _ = self._plane
        self._progress.state("changing a plane")
        wait_for_query(self._kafka, self._app, QUERY, DEPARTURES, self._stop)
        set_model(self._ops, tailnum, NEW_MODEL)
        wait_for_model(self._kafka, tailnum, NEW_MODEL, self._stop)
        self._progress.state("running")
