"""How far consumer groups are behind: in events, bytes and seconds. Over the Admin API and a few sampled messages alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from millstream.client.admin import EARLIEST, LATEST, offsets, topic_names
from millstream.client.connect import TIMEOUT_S, admin
from millstream.client.groups import committed_by, groups
from millstream.monitor.forecast import Retention, Sample
from millstream.monitor.probe import BATCH_BYTES, Place, Probe
from millstream.settings import Kafka

MAX_TIMESTAMP: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
SIZES_S = 60.0  # how long a sampled size of a topic's messages counts
RETENTION_S = 60.0  # how long a topic's settings count


@dataclass(frozen=True, slots=True)
class Behind:
    """A group's distance to the end of one partition.

    lag: offsets between. bytes: what they hold, estimated from samples. seconds: how long ago the first of them was written.
    span: and how much earlier than the newest message. All 0 for a group at the end; None where nothing could be sampled.
    """

    group: str
    topic: str
    partition: int
    committed: int
    start: int
    end: int
    lag: int
    bytes: int | None
    seconds: float | None
    span: float | None

    def sample(self, at: float, size: float | None) -> Sample:
        """Return the figures as a forecast takes them. `at`: when they were taken, epoch seconds."""
        written_at = at - self.seconds if self.lag and self.seconds is not None else None
        return Sample(at, self.start, self.committed, self.end, written_at, size)


class Meter:
    """Measures again and again; remembers sizes and settings for a while. For one thread; close it."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._probe = Probe(kafka)
        self._sizes: dict[tuple[str, int], tuple[float, float]] = {}  # (monotonic seconds, bytes)
        self._retentions: dict[str, tuple[float, Retention]] = {}
        self._first: dict[Place, float | None] = {}

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._probe.close()

    def measure(self, names: Sequence[str] | None = None) -> tuple[float, list[Behind]]:
        """Return when it was (epoch seconds), and the distance of every group or of those named, in each partition it committed.

        Raises MillstreamError when the log does not answer.
        """
        wanted = [g.name for g in groups(self._kafka)] if names is None else list(names)
        positions = committed_by(self._kafka, wanted)
        existing = set(topic_names(self._kafka))  # offsets outlive the topics they were committed for
        places = sorted({tp for position in positions.values() for tp in position if tp[0] in existing})
        starts = offsets(self._kafka, places, EARLIEST)
        ends = offsets(self._kafka, places, LATEST)
        at = time.time()
        known = [
            (group, topic, p, tp.offset)
            for group, position in sorted(positions.items())
            for (topic, p), tp in sorted(position.items())
            if (topic, p) in ends
        ]
        unread = {(topic, p, max(offset, starts[topic, p])) for _, topic, p, offset in known if offset < ends[topic, p]}
        self._sample(unread, ends)
        newest = self._newest({(topic, p) for topic, p, _ in unread})
        return at, [
            self._behind(at, group, topic, p, offset, starts[topic, p], ends[topic, p], newest)
            for group, topic, p, offset in known
        ]

    def size(self, topic: str, partition: int) -> float | None:
        """Return what a message takes in the log, at most: as if it were alone in its batch, and not compressed."""
        found = self._sizes.get((topic, partition))
        return found[1] + BATCH_BYTES if found else None

    def retention(self, topics: Iterable[str]) -> dict[str, Retention]:
        """Return what the topics keep. No limits where their settings may not be seen."""
        now = time.monotonic()
        wanted = sorted(set(topics))
        ask = [t for t in wanted if t not in self._retentions or now - self._retentions[t][0] > RETENTION_S]
        self._retentions |= {t: (now, found) for t, found in _retentions(self._kafka, ask).items()}
        return {t: self._retentions[t][1] for t in wanted}

    def _sample(self, unread: set[Place], ends: Mapping[tuple[str, int], int]) -> None:
        """Look at what is at the groups' positions, unless we know it, and now and then at the ends, for the sizes."""
        now = time.monotonic()
        self._first = {place: at for place, at in self._first.items() if place in unread}
        stale = {
            (topic, p) for topic, p, _ in unread if now - self._sizes.get((topic, p), (-SIZES_S, 0.0))[0] >= SIZES_S
        }
        last = {(topic, p, ends[topic, p] - 10) for topic, p in stale if ends[topic, p] - 10 >= 0}
        wanted = [place for place in sorted(unread) if place not in self._first or place[:2] in stale]
        found = self._probe.look([*wanted, *sorted(last)])
        self._first |= {place: found[place].at for place in wanted if place in found}
        for topic, p in stale:
            sizes = [f.size for place, f in found.items() if place[:2] == (topic, p)]
            if sizes:
                self._sizes[topic, p] = (now, sum(sizes) / len(sizes))

    def _newest(self, places: set[tuple[str, int]]) -> dict[tuple[str, int], float]:
        """The largest timestamp of each partition, epoch seconds."""
        if not places:
            return {}
        asked = admin(self._kafka).list_offsets(
            {TopicPartition(topic, p): MAX_TIMESTAMP for topic, p in sorted(places)}, request_timeout=TIMEOUT_S
        )
        newest = {}
        for tp, future in asked.items():
            try:
                newest[tp.topic, tp.partition] = future.result(TIMEOUT_S + 5).timestamp / 1000
            except KafkaException:  # a broker before 3.0 does not tell: then nobody knows
                continue
        return newest

    def _behind(
        self,
        at: float,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        start: int,
        end: int,
        newest: Mapping[tuple[str, int], float],
    ) -> Behind:
        lag = max(0, end - offset)
        if not lag:
            return Behind(group, topic, partition, offset, start, end, 0, 0, 0.0, 0.0)
        held = end - max(offset, start)  # what was deleted is missed, but no longer to be read
        size = self._sizes.get((topic, partition))
        first = self._first.get((topic, partition, max(offset, start)))
        last = newest.get((topic, partition))
        return Behind(
            group,
            topic,
            partition,
            offset,
            start,
            end,
            lag,
            round(held * size[1]) if size else None,
            max(0.0, at - first) if first is not None else None,
            max(0.0, last - first) if first is not None and last is not None and last >= 0 else None,
        )


def _retentions(kafka: Kafka, topics: Sequence[str]) -> dict[str, Retention]:
    if not topics:
        return {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    found = dict.fromkeys(topics, Retention())
    for resource, future in admin(kafka).describe_configs(resources, request_timeout=TIMEOUT_S).items():
        try:
            settings = {e.name: e.value for e in future.result(TIMEOUT_S + 5).values()}
        except (
            KafkaException
        ):  # a topic whose settings we may not see, or just deleted: its start still tells something
            continue
        if "delete" in str(settings.get("cleanup.policy", "")):
            ms, size = int(settings.get("retention.ms") or -1), int(settings.get("retention.bytes") or -1)
            found[resource.name] = Retention(ms / 1000 if ms >= 0 else None, size if size >= 0 else None)
    return found
