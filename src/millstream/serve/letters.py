"""Following alert topics and dead letters: the newest of each, and how many distinct events could not be read."""

from __future__ import annotations

import base64
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

from confluent_kafka import KafkaException, Message, TopicPartition

from millstream.client.consumer import Consumer, is_unreadable, json_object, unreadable
from millstream.client.consumer import consumer as open_consumer
from millstream.serve.activity import Activity
from millstream.serve.positions import Positions
from millstream.serve.state import DeadLetters, Letter
from millstream.settings import Kafka

KEPT = 50  # newest messages per topic that the page shows
BEHIND = 2_000  # a reader of alerts that is further behind jumps to the newest: the page shows no others
MAX_DISTINCT = 100_000  # origins of dead letters that are told apart; more are "at least so many"
MAX_VALUE = 8_192  # characters of a text that are kept; a page cannot show more
MAX_OBJECT = 65_536  # bytes of an alert that is shown by its fields; a larger one is shown as the beginning of its text
_BATCH = 500
_POLL_S = 0.5
_QUEUED_KB = 1_024

_log = logging.getLogger(__name__)


class Letters:
    """Reads alert topics and the dead-letter topic with one consumer, in a thread (`run`), without a group.

    Alerts are read only while somebody looks, dead letters always: their origins are counted. on_news: called in the thread
    after something new came in.
    """

    def __init__(
        self,
        kafka: Kafka,
        alerts: Collection[str],
        dead: str,
        positions: Positions,
        activity: Activity,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self._kafka = kafka
        self._dead = dead
        self._positions = positions
        self._activity = activity
        self._on_news = on_news
        self._kept: dict[str, deque[tuple[float, int, int, Message | Letter]]] = {
            name: deque(maxlen=KEPT) for name in (*alerts, dead)
        }
        self._origins: set[bytes] = set()
        self._assigned: dict[tuple[str, int], int] = {}  # partition: the next offset
        self._taken: dict[tuple[str, int], float] = {}  # partition: when its last message came, epoch seconds

    def run(self) -> None:
        """Read until the end."""
        consumer = open_consumer(
            self._kafka, "millstream.console", queued_max_messages_kbytes=_QUEUED_KB, fetch_wait_max_ms=5_000
        )
        try:
            while not self._activity.ended:
                try:
                    self._step(consumer)
                except KafkaException as error:
                    _log.warning("alerts and dead letters cannot be read, trying again: %s", error)
                    self._assigned.clear()
                    self._activity.rest(1.0, 1.0)
        finally:
            consumer.close()

    def alerts(self) -> list[Letter]:
        """Return the newest alerts, newest first."""
        kept = [list(entries) for name, entries in self._kept.items() if name != self._dead]
        newest = sorted(itertools.chain.from_iterable(kept), key=lambda e: e[:3], reverse=True)[:KEPT]
        return [kept if isinstance(kept, Letter) else alert(kept) for *_, kept in newest]

    def dead_letters(self) -> DeadLetters:
        """Return the newest dead letters, newest first, and how many distinct ones there are."""
        newest = sorted(self._kept[self._dead], key=lambda e: e[:3], reverse=True)
        return DeadLetters(
            self._dead,
            len(self._origins),
            len(self._origins) >= MAX_DISTINCT,
            [kept if isinstance(kept, Letter) else dead_letter(kept) for *_, kept in newest],
        )

    def _step(self, consumer: Consumer) -> None:
        if self._assign(consumer):
            news = False
            for message in consumer.consume(_BATCH, _POLL_S):
                if (error := message.error()) and is_unreadable(error):
                    self._skip(consumer, message)
                news = self._take(message) or news
            if news:
                self._on_news()
        elif not self._activity.rest(1.0, 5.0):
            return

    def _assign(self, consumer: Consumer) -> bool:
        """Follow the partitions that are there: alerts from their newest, dead letters from the first; returns whether any."""
        reading, looking = self._positions.reading, self._activity.looking
        wanted: dict[tuple[str, int], int] = {}
        for name in self._kept:
            facts = reading.topics.get(name)
            if facts is None or not (looking or name == self._dead):
                continue
            for partition, start in facts.start.items():
                # The reading may be older than what we have read since; only a newer one can say that the topic was made again.
                older = reading.at <= self._taken.get((name, partition), 0.0)
                end = reading.ends.get((name, partition), facts.end[partition])
                at = self._assigned.get((name, partition), start)
                if at > end and not older:
                    at = start
                if name != self._dead and end - at > BEHIND:
                    at = max(start, end - KEPT)
                wanted[name, partition] = at
        if wanted.keys() != self._assigned.keys() or any(
            at < self._assigned[tp] or at - self._assigned[tp] > BEHIND // 2 for tp, at in wanted.items()
        ):
            for name in {name for name, _ in wanted} - {name for name, _ in self._assigned}:
                self._kept[name].clear()
            # An alert topic that nobody looked at is taken up again at its newest messages.
            for (name, partition), at in wanted.items():
                if (name, partition) not in self._assigned and name != self._dead:
                    end = reading.ends.get((name, partition), at)
                    wanted[name, partition] = max(at, end - KEPT)
            consumer.assign([TopicPartition(name, p, at) for (name, p), at in wanted.items()])
            self._assigned = wanted
        return bool(wanted)

    def _skip(self, consumer: Consumer, message: Message) -> None:
        """Go on at the end of a partition: asking again would bring the batch that cannot be unpacked again and again."""
        topic, partition, offset = cast(
            "tuple[str, int, int]", (message.topic(), message.partition(), message.offset())
        )
        end = max(self._positions.reading.ends.get((topic, partition), 0), offset + 1)
        _log.warning("%s; going on at its end, offset %d", unreadable(message), end)
        consumer.seek(TopicPartition(topic, partition, end))
        if (topic, partition) in self._assigned:
            self._assigned[topic, partition] = end

    def _take(self, message: Message) -> bool:
        if message.error() is not None:
            return False
        topic, partition, offset = cast(
            "tuple[str, int, int]", (message.topic(), message.partition(), message.offset())
        )
        if (topic, partition) in self._assigned:
            self._assigned[topic, partition] = offset + 1
            self._taken[topic, partition] = time.time()
        if topic == self._dead:
            key = message.key()
            if message.value() is None:
                return False
            if len(self._origins) < MAX_DISTINCT:
                self._origins.add(key if isinstance(key, bytes) else str(key).encode())
        # Small messages are kept as they came: most are pushed out before anybody looks. Large ones would fill the memory.
        large = len(message.value() or b"") > MAX_OBJECT
        kept = message if not large else dead_letter(message) if topic == self._dead else alert(message)
        self._kept[topic].append((message.timestamp()[1] / 1000, partition, offset, kept))
        return True


def alert(message: Message) -> Letter:
    """Return an alert for the page: its fields, and the origin that its header bears."""
    letter = _letter(message)
    for name, value in cast("list[tuple[str, bytes | None]]", message.headers() or []):
        if name == "origin" and value:
            letter.origin = value.decode(errors="replace")[:MAX_VALUE]
    return letter


def dead_letter(message: Message) -> Letter:
    """Return a dead letter for the page: why, from where, and what it was."""
    letter, raw = _letter(message), message.value()
    facts = json_object(raw if isinstance(raw, bytes) else None) or {}
    letter.reason = str(facts.get("reason", "unknown"))[:MAX_VALUE]
    letter.origin = letter.key
    letter.value = _original(facts)
    if isinstance(facts.get("at"), str):
        with suppress(ValueError):
            letter.at = datetime.fromisoformat(facts["at"]).timestamp()
    return letter


def _letter(message: Message) -> Letter:
    topic, partition, offset = cast("tuple[str, int, int]", (message.topic(), message.partition(), message.offset()))
    stamp, key, value = message.timestamp()[1], message.key(), message.value()
    return Letter(
        topic,
        partition,
        offset,
        stamp / 1000 if stamp >= 0 else None,
        key.decode(errors="replace")[:MAX_VALUE] if isinstance(key, bytes) else key,
        _value(value if isinstance(value, bytes) else None),
    )


def _value(raw: bytes | None) -> dict[str, Any] | str | None:
    if raw is None:
        return None
    found = json_object(raw) if len(raw) <= MAX_OBJECT else None
    return raw[:MAX_VALUE].decode(errors="replace") if found is None else found


def _original(facts: Mapping[str, Any]) -> str | None:
    value = facts.get("value")
    if isinstance(value, str) and facts.get("encoding") == "base64":
        try:
            return repr(base64.b64decode(value[:MAX_VALUE]))[2:-1]
        except ValueError:
            return value[:MAX_VALUE]
    return None if value is None else str(value)[:MAX_VALUE]
