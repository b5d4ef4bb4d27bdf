"""Topics of a log: create them, describe them, and say where their partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
)

from millstream.app.topics import INTERNAL
from millstream.client.connect import TIMEOUT_S, admin, code, explain, result
from millstream.settings import Kafka, MillstreamError

SETTLING_S = 10.0  # Apache Kafka shows a new topic in its metadata a moment before the partition's leader serves it
_SETTLING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}
_BROKER_DEFAULT = -1  # replication factor: what the cluster is configured to give (KIP-464)

Offsets = dict[tuple[str, int], int]
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class TopicFacts:
    """What a log says about a topic. `config` holds only what differs from the broker's defaults.

    start, end: first and next offset by partition. `events` counts offsets, so on a compacted or transactional topic it is
    an upper bound.
    """

    name: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.end)

    @property
    def events(self) -> int:
        """The number of offsets between the start and the end of every partition."""
        return sum(end - self.start[p] for p, end in self.end.items())


def ensure_topic(
    kafka: Kafka, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
) -> bool:
    """Create a topic unless it exists, and return whether it was created. See `ensure_topics`."""
    return bool(ensure_topics(kafka, [(name, partitions, config)]))


def ensure_topics(kafka: Kafka, topics: Sequence[tuple[str, int | None, Mapping[str, str] | None]]) -> list[str]:
    """Create the topics (name, partitions, settings) that do not exist, and return the names of those that were created.

    An existing topic is left as it is: adding partitions moves keys, which nobody should do by accident. Topics of Millstream's
    own (`_millstream.…`) need neither partitions nor settings. Returns when the log's metadata shows every topic.
    Raises MillstreamError when the log refuses a topic or does not answer.
    """
    client = admin(kafka)
    known = _metadata(client, kafka).topics
    missing = {name: (p, c) for name, p, c in topics if name not in known}
    if not missing:
        return []
    futures = client.create_topics(
        [_new_topic(name, partitions, config) for name, (partitions, config) in missing.items()],
        request_timeout=TIMEOUT_S,
        operation_timeout=TIMEOUT_S,
    )
    created = []
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S + 5)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was faster: as good
                raise explain(error.args[0], kafka, f"topic {name!r} cannot be created") from error
    _wait_for_topics(client, kafka, set(missing))
    return created


def delete_topic(kafka: Kafka, name: str) -> None:
    """Delete a topic with everything in it; returns when the log's metadata no longer shows it.

    Raises MillstreamError when there is no such topic.
    """
    client = admin(kafka)
    _partitions_of(client, kafka, [name])
    result(
        client.delete_topics([name], request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S)[name],
        kafka,
        f"topic {name!r} cannot be deleted",
    )
    _wait_for_topics(client, kafka, set(), gone={name})


def topic_names(kafka: Kafka) -> list[str]:
    """Return the names of all topics, sorted."""
    return sorted(_metadata(admin(kafka), kafka).topics)


def start_offsets(kafka: Kafka, topics: Iterable[str]) -> Offsets:
    """Return the first offset of every partition of the topics, by (topic, partition).

    Raises MillstreamError when a topic does not exist or the log does not answer.
    """
    client = admin(kafka)
    return offsets(kafka, _partitions_of(client, kafka, topics), EARLIEST)


def end_offsets(kafka: Kafka, topics: Iterable[str]) -> Offsets:
    """Return the next offset to be written (the high watermark) of every partition of the topics, by (topic, partition).

    Raises MillstreamError when a topic does not exist or the log does not answer.
    """
    client = admin(kafka)
    return offsets(kafka, _partitions_of(client, kafka, topics), LATEST)


def offsets(kafka: Kafka, partitions: Iterable[tuple[str, int]], spec: OffsetSpec) -> Offsets:
    """Return the offset that `spec` names of each (topic, partition)."""
    wanted = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    if not wanted:
        return {}
    found: Offsets = {}
    deadline = time.monotonic() + SETTLING_S
    while wanted:
        for tp, future in admin(kafka).list_offsets(wanted, request_timeout=TIMEOUT_S).items():
            try:
                found[tp.topic, tp.partition] = result(
                    future, kafka, f"offsets of {tp.topic} [{tp.partition}] cannot be read"
                ).offset
            except MillstreamError as error:
                if code(error) not in _SETTLING or time.monotonic() > deadline:
                    raise
        wanted = {tp: spec for tp in wanted if (tp.topic, tp.partition) not in found}
        if wanted:
            time.sleep(0.05)
    return found


def describe_topics(kafka: Kafka, names: Iterable[str] | None = None) -> list[TopicFacts]:
    """Return the facts of the topics, all of them without `names`, sorted by name.

    Raises MillstreamError when a name does not exist or the log does not answer.
    """
    client = admin(kafka)
    partitions = _partitions_of(client, kafka, names)
    start = offsets(kafka, partitions, EARLIEST)
    end = offsets(kafka, partitions, LATEST)
    found = sorted({topic for topic, _ in partitions})
    configs = _overrides(client, kafka, found)
    return [
        TopicFacts(
            name,
            start={p: offset for (topic, p), offset in sorted(start.items()) if topic == name},
            end={p: offset for (topic, p), offset in sorted(end.items()) if topic == name},
            config=configs[name],
        )
        for name in found
    ]


def _new_topic(name: str, partitions: int | None, config: Mapping[str, str] | None) -> NewTopic:
    return NewTopic(
        name,
        num_partitions=partitions or (1 if name in INTERNAL else -1),
        replication_factor=_BROKER_DEFAULT,
        config={**INTERNAL.get(name, {}), **(config or {})},
    )


def _metadata(client: AdminClient, kafka: Kafka, timeout: float = TIMEOUT_S) -> ClusterMetadata:
    """All topics, never one by name: asking by name would create it on a broker with auto.create.topics.enable."""
    try:
        return client.list_topics(timeout=timeout)
    except KafkaException as error:
        raise explain(error.args[0], kafka, "the list of topics cannot be read") from error


def _partitions_of(client: AdminClient, kafka: Kafka, names: Iterable[str] | None) -> list[tuple[str, int]]:
    topics = _metadata(client, kafka).topics
    for name in names or ():
        if name not in topics:
            raise MillstreamError(f"there is no topic {name!r} at {kafka.bootstrap}; `millstream topics` lists them.")
    return [(name, p) for name in (topics if names is None else dict.fromkeys(names)) for p in topics[name].partitions]


def _wait_for_topics(client: AdminClient, kafka: Kafka, names: set[str], gone: Set[str] = frozenset()) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        topics = _metadata(client, kafka).topics
        ready = {
            n
            for n in names & topics.keys()
            if topics[n].partitions
            and topics[n].error is None
            and all(p.leader >= 0 for p in topics[n].partitions.values())
        }
        if ready == names and not gone & topics.keys():
            return
        if time.monotonic() > deadline:
            raise MillstreamError(
                f"the log at {kafka.bootstrap} does not show the topics {', '.join(sorted(names - ready | gone))}"
                f" as asked after {TIMEOUT_S:.0f} s; look at the broker's own log."
            )
        time.sleep(0.02)


def _overrides(client: AdminClient, kafka: Kafka, names: Sequence[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, future in client.describe_configs(resources, request_timeout=TIMEOUT_S).items():
        try:
            entries = future.result(TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART):
                raise explain(error.args[0], kafka, f"settings of topic {resource.name!r} cannot be read") from error
            entries = {}  # a topic whose settings we may not see, or just deleted, is still worth listing
        found[resource.name] = {
            e.name: e.value
            for e in entries.values()
            if ConfigSource(e.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG and e.value is not None
        }
    return found
