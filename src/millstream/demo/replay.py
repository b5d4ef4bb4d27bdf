"""The replayer: sends each departure when it departs and each arrival when it lands, and goes on where it was when killed."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import KafkaError, Message

from millstream.client.admin import end_offsets, ensure_topics
from millstream.client.producer import producer
from millstream.client.status import Reporter
from millstream.client.tail import tail
from millstream.client.wait import wait_for_kafka
from millstream.demo import data, malformed
from millstream.demo.pacing import Clock, Pacer
from millstream.demo.plane import NEW_MODEL, QUERY, set_model, wait_for_model, wait_for_query
from millstream.demo.resume import Last, OtherInput, Partition, check, remaining
from millstream.demo.sequence import ARRIVALS, DEPARTURES, TOPICS, Replay, Slot, busiest_plane
from millstream.demo.tables import records
from millstream.event import Topic
from millstream.run.child import Ready, work
from millstream.settings import Kafka, MillstreamError, Settings

# What a killed replayer had on its way may still be written after we look. A local broker takes milliseconds for that; should it
# take longer than this, the offset in each delivery report shows it.
SETTLE_S = 1.0
SETTLE_LIMIT_S = 60.0
RESTART_S = 60.0  # how long a log that went away for good (the producer gave up) is waited for
MAX_ATTEMPTS = 6  # without a single message stored in between; then the error is shown
STOP_S = 5.0  # how long the last messages may take when the replay is stopped
POLL_S = 0.1  # how soon a stop is noticed
_POLL_EVERY = 64  # messages between two looks at the delivery reports while nothing holds us back

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What is replayed. speed: seconds of events per second, None for as fast as possible. bad: how many malformed events."""

    days: int = 7
    speed: float | None = None
    bad: int = malformed.DEFAULT
    seed: int = 0

    def __post_init__(self) -> None:
        data.check_days(self.days)
        if self.speed is not None and not self.speed > 0:
            raise MillstreamError(f"--speed must be positive (seconds of flights per second) or max, got {self.speed}.")
        if self.bad < 0:
            raise MillstreamError(f"--bad must not be negative, got {self.bad}.")

    def replay(self, partitions: Mapping[str, int] | None = None) -> Replay:
        """Return the input: the flights as events of the application. Loads the application, which loads pyspark."""
        from millstream.demo import flights as application

        declared = {t.name: t.partitions for t in _topics()}
        return Replay(
            data.flights(self.days),
            application.Departure,
            application.Arrival,
            partitions or declared,
            self.bad,
            self.seed,
        )


def speed(text: str) -> float | None:
    """Return the speed that a user gave: a number, or None for "max"."""
    if text == "max":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise MillstreamError(
            f'--speed must be a number (seconds of flights per second) or "max", got {text!r}.'
        ) from error


def run(
    options: Options,
    kafka: Kafka,
    ops: str,
    *,
    app: str = "flights",
    ready: Callable[[dict[str, object]], None] = lambda facts: None,
    stop: threading.Event | None = None,
) -> bool:
    """Replay until everything is acknowledged, or `stop` is set; return whether it is complete.

    ops: connection string of the database with the table planes. `ready` is called when the first message is about to go.
    Raises MillstreamError when the topics hold another input, the log stays away, or capture does not follow.
    """
    stop = stop or threading.Event()
    ensure_topics(kafka, [(t.name, t.partitions, t.config) for t in _topics()])
    seen = Stored(kafka)
    with Reporter(kafka, app) as reporter:
        progress = Progress(reporter, options)
        try:
            progress.state("loading")
            replay = options.replay(seen.partitions())
            progress.total = replay.total
            attempts, announced = 0, False
            while True:
                stored, before = seen.settle(stop), progress.sent
                progress.sent = progress.resumed = check(replay, stored, seen.last())
                attempts = 1 if progress.sent > before else attempts + 1
                if not announced:
                    ready({"total": replay.total, "stored": progress.sent})
                    announced = True
                try:
                    complete = _send(replay, kafka, ops, app, stored, options.speed, progress, stop)
                    progress.state("done" if complete else "stopped")
                    return complete
                except Interrupted as error:
                    _log.warning("the replay was interrupted and looks where to go on: %s", error)
                    progress.state("resuming", str(error))
                    if attempts >= MAX_ATTEMPTS:
                        raise MillstreamError(
                            f"the replay does not get on, tried {attempts} times: {error}."
                        ) from error
                    wait_for_kafka(kafka, RESTART_S)
        except MillstreamError as error:
            progress.state("failed", str(error))
            raise


def _send(
    replay: Replay,
    kafka: Kafka,
    ops: str,
    app: str,
    stored: Mapping[Partition, int],
    speed: float | None,
    progress: Progress,
    stop: threading.Event,
) -> bool:
    ahead = min(t.lateness for t in _topics()).total_seconds() / 60 / 2
    with Sending(replay, kafka, ops, app, Pacer(ahead), progress, stop) as sending:
        return sending.everything(speed, stored)


class Interrupted(Exception):
    """The producer gave up a message; what the log holds says where to go on."""


class Stored:
    """What the topics hold."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._ends = end_offsets(kafka, TOPICS)
        self._since = time.monotonic()

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        return {topic: sum(t == topic for t, _ in self._ends) for topic in TOPICS}

    def settle(self, stop: threading.Event) -> dict[Partition, int]:
        """Return how many messages each partition holds, once that has not changed for SETTLE_S.

        Raises MillstreamError when it keeps changing: somebody else writes.
        """
        deadline = time.monotonic() + SETTLE_LIMIT_S
        self._since = min(self._since, time.monotonic())
        while True:
            ends = end_offsets(self._kafka, TOPICS)
            now = time.monotonic()
            if ends != self._ends:
                self._ends, self._since = ends, now
            elif now - self._since >= SETTLE_S or stop.is_set():
                return ends
            if now > deadline:
                raise MillstreamError(
                    f"something else writes to {' or '.join(TOPICS)}: they still grow after {SETTLE_LIMIT_S:.0f} s."
                    " Is another demo running on the same log? Stop it, or use another --data folder."
                )
            stop.wait(POLL_S)

    def last(self) -> dict[Partition, Last]:
        """Return the last message of every partition that holds any. Raises MillstreamError when one was removed."""
        found: dict[Partition, Last] = {}
        for topic in TOPICS:
            for message in tail(self._kafka, topic, -1, follow=False):
                found[topic, message.partition] = Last(message.key, message.value)
        for (topic, partition), count in self._ends.items():
            if count and (topic, partition) not in found:
                raise OtherInput(
                    f"{topic} [{partition}] held {count:,} messages, of which the last is gone: its retention is shorter"
                    " than the replay. Delete the topic, or use another --data folder, and start again."
                )
        return found


class Progress:
    """What the replay says about itself: kind "replay" in the status topic."""

    def __init__(self, reporter: Reporter, options: Options) -> None:
        self._reporter = reporter
        self._options = options
        self._state = "starting"
        self._error: str | None = None
        self._mark = (time.monotonic(), 0)
        self.total: int | None = None
        self.resumed = 0  # stored before this run of the process
        self.sent = 0  # acknowledged, by this and earlier runs
        self.minute: int | None = None  # of the newest message sent
        self.rate = 0.0

    def state(self, state: str, error: str | None = None) -> None:
        """Say what the replay is doing: loading, running, changing a plane, resuming, done, stopped, failed."""
        self._state, self._error = state, error
        self.report()

    def tick(self) -> None:
        """Report at most once a second."""
        if time.monotonic() - self._mark[0] >= 1:
            self.report()

    def report(self) -> None:
        """Report now."""
        now = time.monotonic()
        if (elapsed := now - self._mark[0]) > 0.2:
            self.rate = max(0, self.sent - self._mark[1]) / elapsed
            self._mark = (now, self.sent)
        self._reporter.report(
            "replay",
            "flights",
            state=self._state,
            error=self._error,
            sent=self.sent,
            total=self.total,
            resumed=self.resumed,
            event_time=None if self.minute is None else data.at(self.minute).isoformat(),
            rate=round(self.rate, 1),
            days=self._options.days,
            speed=self._options.speed,
            bad=self._options.bad,
        )


class Sending:
    """One producer's life: from what is stored to the end of the input, or to the producer's failure."""

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


def _topics() -> tuple[Topic, Topic]:
    from millstream.demo.flights import app

    return app.topics[DEPARTURES], app.topics[ARRIVALS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replayer as a child process of the supervisor (see run.child); it ends by itself when all is sent."""
    parser = argparse.ArgumentParser(prog="python -m millstream.demo.replay", description="Replay the flights of 2013.")
    parser.add_argument("--days", type=int, default=Options.days)
    parser.add_argument("--speed", default="max", help="seconds of flights per second, or max")
    parser.add_argument("--bad", type=int, default=Options.bad, help="how many malformed events")
    parser.add_argument("--seed", type=int, default=Options.seed, help="where the malformed events come")
    given = parser.parse_args(arguments)

    def replay(ready: Ready, stop: threading.Event) -> None:
        settings = Settings.load()
        if settings.kafka is None or not settings.source("ops"):
            raise MillstreamError(
                "the replay needs the addresses of the log and of the source database: set MILLSTREAM_KAFKA and"
                " MILLSTREAM_SOURCE_OPS, or use `millstream demo`, which starts both."
            )
        options = Options(given.days, speed(given.speed), given.bad, given.seed)
        run(options, settings.kafka, settings.source("ops"), ready=ready, stop=stop)

    return work(replay, ends=True)


if __name__ == "__main__":
    sys.exit(main())
