"""Alerts, each once: from the candidates that Spark writes in real-time mode to each alert's sink, without their repeats.

Spark's sink writes at least once: after a crash it computes up to a batch again and writes the same candidates again, at new
offsets, between others, perhaps to other partitions. This process may be killed anywhere, too. Still every alert must reach its
sink once. An alert's identity is the text of its `origin` header: the events that caused it and, where one event may raise
several alerts, a hash of the row. So two candidates of one origin are one alert. Nothing here looks into the text but for the
place of the first event, by which the bounds of the memory are kept (`seen.py`).

The parts: `session.py` passes rows from the feed (`feed.py`: candidates, repeats, progress) to the sink (`sink.py`: the contract;
`sinks/`: one module a kind). What follows is about sinks that can tell what they hold, as a topic can.

How it works
------------
The sink itself, here the alert's topic, is the record of what was written; there is no second one that could disagree.

1. Candidates are read in their order and forwarded unless their origin was written before (`seen.py`). The producer is
   idempotent, so that its own retries, also across a crash of the broker, write once.
2. Every second the input's position is committed to the alert's group: the offset below which each candidate is written and
   acknowledged, or suppressed (`progress.py`). The commit's metadata holds the bounds of the memory of origins at that moment.
3. A new process starts at the committed position and reads the alert's topic back from the bounds' tail to its end. It then
   knows the origin of every alert written since, those after the commit included, and skips them when their candidates come.

Why it is exact, whatever Spark replays
---------------------------------------
* Nothing is lost: a position is committed only past candidates whose alert the broker has acknowledged, and a candidate is
  suppressed only when its origin stands in the topic, or is on its way there; if it then does not arrive, this process (or its
  session with the broker) ends before it commits past the candidate it was on its way for.
* Nothing is repeated: let an alert of origin o stand in the topic. If o is among the recent origins, its candidate is suppressed.
  Otherwise it was let go, and then the floor of its source partition lies above o; a candidate below the floor that is not among
  the recent ones is decided by the whole topic (read once, when the first such candidate comes). This holds after a restart: tail
  and floor are committed together, so what stands before the tail and is not read back lies below the floor. An older commit
  that arrives late does no harm: an older pair of bounds is as true as a newer one, it only begins further back.
* So no assumption is made on when Spark commits its batches, how far back it replays, or in which order. A checkpoint that was
  deleted writes every candidate again, and every one is recognised.

What a killed process may have left under way
---------------------------------------------
A message that the killed process had handed to its kernel may reach the topic after its successor has read the topic's end; the
successor would not know of it and write it again. Only fencing the predecessor (a transactional producer) excludes this in
principle. Without it, it is bounded: a delivery is marked "open" in its commit before its first write, and "closed" after its
last acknowledgement; a successor that finds it open waits SETTLE_S before it reads back. On one machine the kernel hands over
what was sent at once, and a broker takes what has arrived before it can have answered the successor's several round trips; over a
network the second covers several retransmissions. What remains is a broker or a network that stands still for longer than that
between accepting a dead client's bytes and appending them. A producer that fails inside a living process is waited for alike.

Limits
------
Two processes that deliver the same alert at the same time would both write it: the supervisor starts one. An alert's topic that
is compacted, or whose old events retention has removed, no longer tells of them: a repeat of those goes out again. A source
topic that was deleted and made again gives old origins to new events, whose alerts count as repeats: make the alert's topic again
with it. Partitions added to the candidates are read from the next start on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from millstream.app.query import Delivery
from millstream.client.wait import wait_for_kafka
from millstream.deliver.session import Session
from millstream.deliver.sink import Interrupted
from millstream.monitor.status import Reporter
from millstream.settings import Kafka, Unreachable

RETRY_S = 1.0  # between two sessions when the log broke off the first

_log = logging.getLogger(__name__)


def run(
    app: str,
    deliveries: Sequence[Delivery],
    kafka: Kafka,
    *,
    ready: Callable[[dict[str, object]], None],
    stop: threading.Event,
) -> None:
    """Deliver the alerts of an application until `stop` is set. `ready` is called when what was written before is known.

    The topics must exist. Raises MillstreamError when one does not, or the log does not answer.
    """
    if not deliveries:
        ready({"alerts": 0})
        stop.wait()
        return
    wait_for_kafka(kafka)
    with Reporter(kafka, app) as reporter:
        halt = _Halt(stop)
        opened: queue.SimpleQueue[None] = queue.SimpleQueue()
        workers = [
            threading.Thread(
                target=_work,
                args=(alert, kafka, reporter, opened, halt),
                name=f"deliver {alert.query}",
            )
            for alert in deliveries
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            opened.get()
        if not halt.is_set():
            ready({"alerts": len(deliveries)})
        for worker in workers:
            worker.join()
    if halt.error:
        raise halt.error


class _Halt:
    """The end that the owner asks for, or that the first failed delivery brings to all of them."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.error: BaseException | None = None

    def is_set(self) -> bool:
        return self.error is not None or self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        return self._stop.wait(seconds) or self.is_set()


def _work(alert: Delivery, kafka: Kafka, reporter: Reporter, opened: queue.SimpleQueue[None], halt: _Halt) -> None:
    """Deliver one alert, in session after session: one that the log breaks off is followed by another, as after a crash."""
    first = True
    try:
        while not halt.is_set():
            session = Session(alert, kafka, reporter)
            try:
                if session.open(halt.wait) and first:
                    first = False
                    opened.put(None)
                session.run(halt.is_set)
                return
            except (Interrupted, Unreachable) as interruption:
                _log.warning("delivery to %s starts again: %s", alert.sink.describe(), interruption)
                halt.wait(RETRY_S)
            finally:
                session.close()
    except BaseException as error:
        halt.error = halt.error or error
    finally:
        if first:
            opened.put(None)
