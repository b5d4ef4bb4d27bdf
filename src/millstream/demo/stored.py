"""What the replay's topics hold: how many messages, once nothing more arrives, and the last one of each partition."""

from __future__ import annotations

import threading
import time

from millstream.client.admin import end_offsets
from millstream.client.tail import tail
from millstream.demo.resume import Last, OtherInput, Partition
from millstream.demo.sequence import TOPICS
from millstream.settings import Kafka, MillstreamError

# What a killed replayer had on its way may still be written after we look. A local broker takes milliseconds for that; should it
# take longer than this, the offset in each delivery report shows it.
SETTLE_S = 1.0
SETTLE_LIMIT_S = 60.0
_POLL_S = 0.1


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
            stop.wait(_POLL_S)

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
