"""The replayer: sends each departure when it departs and each arrival when it lands, and continues where it was when killed."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from millstream.app.process import Ready
from millstream.client.admin import ensure_topics
from millstream.client.wait import wait_for_kafka
from millstream.demo.options import Options, speed, topics
from millstream.demo.pacing import Pacer
from millstream.demo.progress import Progress
from millstream.demo.resume import Partition, check
from millstream.demo.sending import Interrupted, Sending
from millstream.demo.sequence import Replay
from millstream.demo.stored import Stored
from millstream.monitor.status import Reporter
from millstream.run.child import work
from millstream.settings import Kafka, MillstreamError, Settings

__all__ = ["Options", "main", "run", "speed"]

RESTART_S = 60.0  # how long a log that went away for good (the producer gave up) is waited for
MAX_ATTEMPTS = 6  # without a single message stored in between; then the error is shown

_log = logging.getLogger(__name__)


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
    ensure_topics(kafka, [(t.name, t.partitions, t.config) for t in topics()])
    seen = Stored(kafka)
    with Reporter(kafka, app) as reporter:
        progress = Progress(reporter, options)
        try:
            progress.state("loading")
            replay = options.replay(seen.partitions())
            progress.total = replay.total
            attempts, before, announced = 0, -1, False
            while True:
                stored = seen.settle(stop)
                progress.sent = progress.resumed = check(replay, stored, seen.last())
                attempts, before = (1 if progress.sent > before else attempts + 1), progress.sent
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
    ahead = min(t.lateness for t in topics()).total_seconds() / 60 / 2
    with Sending(replay, kafka, ops, app, Pacer(ahead), progress, stop) as sending:
        return sending.everything(speed, stored)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replayer as a child process of the supervisor (see run.child); it ends by itself when all is sent."""
    parser = argparse.ArgumentParser(prog="python -m millstream.demo.replay", description="Replay the flights of 2013.")
    parser.add_argument("--days", type=int, default=Options.days)
    parser.add_argument("--speed", default="max", help="seconds of flights per second, or max")
    parser.add_argument("--bad", type=int, default=Options.bad, help="how many malformed events")
    parser.add_argument("--seed", type=int, default=Options.seed, help="where the malformed events come")
    given = parser.parse_args(arguments)

    def replay(ready: Ready, stop: threading.Event) -> None:
        settings = Settings.inherited()
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
