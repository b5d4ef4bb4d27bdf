"""Steps on topics and settings: created, deleted, grown, described, configured."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
from typing import Any

from hypothesis import strategies as st

from millstream.protocol.messages.alter_configs import AlterableConfig as LegacyConfig
from millstream.protocol.messages.alter_configs import AlterConfigsRequest
from millstream.protocol.messages.alter_configs import AlterConfigsResource as LegacyResource
from millstream.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.differential.steps.making import SOME, TOPICS, Kind, Made
from tests.differential.world import World

SETTINGS = st.sampled_from(
    [
        ("retention.ms", "86400000"), ("retention.ms", "x"), ("cleanup.policy", "compact"), ("cleanup.policy", "both"),
        ("cleanup.policy", "compact,delete"), ("max.message.bytes", "2000"), ("max.message.bytes", "-5"),
        ("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "Never"), ("segment.bytes", "1048576"), ("retention.ms", None),
        ("min.insync.replicas", "1"), ("no.such.setting", "1"), ("compression.type", "producer"),
        ("compression.type", "zstd"), ("compression.type", "gzip"), ("compression.type", "lz4"), ("compression.type", "snappy"),
        ("compression.type", "uncompressed"), ("compression.type", "brotli"), ("compression.gzip.level", "0"),
        ("compression.gzip.level", "3"), ("compression.lz4.level", "18"), ("compression.zstd.level", "5"), ("cleanup.policy", ""),
        ("cleanup.policy", "delete,,compact"), ("cleanup.policy", "delete,delete"), ("cleanup.policy", ","), ("cleanup.policy", " delete , compact "),
        ("message.timestamp.before.max.ms", "70000"), ("retention.bytes", ""),
        ("min.cleanable.dirty.ratio", "0.3"), ("min.cleanable.dirty.ratio", "3"), ("delete.retention.ms", " 5 "),
        ("message.timestamp.after.max.ms", "1000"), ("unclean.leader.election.enable", "maybe"), ("flush.ms", "9999999999999999999"),
    ]
)  # fmt: skip
# Settings whose value and source both brokers show alike.
SHOWN = [
    "retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes", "message.timestamp.type", "segment.bytes",
    "compression.type", "compression.gzip.level", "min.cleanable.dirty.ratio", "delete.retention.ms", "flush.ms",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "segment.ms", "no.such.setting",
]  # fmt: skip
NO_ID = bytes(15) + b"\1"
TOPIC, BROKER_LOGGER, GROUP = 2, 8, 32


def create(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"]) if p["topic"] >= 0 else {-1: "", -2: "a b", -3: ".."}[p["topic"]]
    configs = [CreatableTopicConfig(*pair) for pair in p["settings"]]
    request = CreateTopicsRequest([CreatableTopic(name, p["count"], p["factor"], [], configs)], 5000, p["only"])

    def learn(answer: Any) -> None:
        if not answer.topics[0].error_code and not p["only"]:
            world.settle_topics({name: answer.topics[0].num_partitions})

    return Made(request, 7, learn)


def delete(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])

    def learn(answer: Any) -> None:
        if not answer.responses[0].error_code:
            world.settle_topics({name: 0})

    if p["by_id"]:
        state = DeleteTopicState(None, world.topic_ids.get(name, NO_ID))
        return Made(DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6, learn)
    return Made(DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 5, learn)


def grow(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])

    def learn(answer: Any) -> None:
        if not answer.results[0].error_code and not p["only"]:
            world.settle_topics({name: p["count"]})

    return Made(CreatePartitionsRequest([CreatePartitionsTopic(name, p["count"], None)], 5000, p["only"]), 3, learn)


def metadata(world: World, p: dict[str, Any]) -> Made:
    return Made(MetadataRequest([MetadataRequestTopic(name=world.name("t", p["topic"]))], False), p["version"])


def metadata_by_id(world: World, p: dict[str, Any]) -> Made:
    wanted = world.topic_ids.get(world.name("t", p["topic"]), NO_ID)
    return Made(MetadataRequest([MetadataRequestTopic(wanted, None)], False), 12)


def partitions(world: World, p: dict[str, Any]) -> Made:
    names = [TopicRequest(world.name("t", slot)) for slot in (0, p["topic"])]
    return Made(DescribeTopicPartitionsRequest(names[: 1 + bool(p["topic"])], p["limit"]), 0)


def configure(world: World, p: dict[str, Any]) -> Made:
    configs = [AlterableConfig(name, op, value if op != 1 else None) for (name, value), op in p["changes"]]
    resource = AlterConfigsResource(p["kind"], world.name("t", p["topic"]), configs)
    return Made(IncrementalAlterConfigsRequest([resource], p["only"]), 1)


def replace_settings(world: World, p: dict[str, Any]) -> Made:
    configs = [LegacyConfig(*pair) for pair in p["settings"]]
    resource = LegacyResource(TOPIC, world.name("t", p["topic"]), configs)
    return Made(AlterConfigsRequest([resource], p["only"]), 2)


def settings(world: World, p: dict[str, Any]) -> Any:
    name = world.name("t", p["topic"])
    answer = world.ask(DescribeConfigsRequest([DescribeConfigsResource(p["kind"], name, SHOWN)], False, False), 4)
    if isinstance(answer, str):
        return answer
    [found] = answer.results
    shown = {c.name: (c.value, c.config_source, c.read_only, c.is_sensitive, c.config_type) for c in found.configs}
    return found.error_code, found.resource_type, found.resource_name == name, shown


STEPS = {
    "create": Kind(2, create, {
        "topic": st.sampled_from([1, 1, 1, 2, 2, 0, 0, -1, -2, -3]), "count": st.sampled_from([1, 2, -1, 0, -2]),
        "factor": st.sampled_from([1, 1, -1, 0, 3]), "only": st.sampled_from([False, False, True]),
        "settings": st.lists(SETTINGS, max_size=2, unique_by=lambda pair: pair[0]),
    }),
    "delete": Kind(1, delete, {"topic": TOPICS, "by_id": SOME}),
    "grow": Kind(1, grow, {"topic": TOPICS, "count": st.sampled_from([1, 2, 3, 4, 0]), "only": st.sampled_from([False, False, True])}),
    "metadata": Kind(1, metadata, {"topic": TOPICS, "version": st.sampled_from([4, 5, 7, 9, 12, 13])}),
    "metadata by id": Kind(1, metadata_by_id, {"topic": TOPICS}),
    "partitions": Kind(1, partitions, {"topic": TOPICS, "limit": st.sampled_from([1, 2, 2000])}),
    "configure": Kind(2, configure, {
        "topic": TOPICS, "only": SOME, "kind": st.sampled_from([TOPIC] * 8 + [3]),
        "changes": st.lists(st.tuples(SETTINGS, st.sampled_from([0, 0, 0, 1, 2, 3])), min_size=1, max_size=2),
    }),
    "replace settings": Kind(1, replace_settings, {
        "topic": TOPICS, "only": SOME, "settings": st.lists(SETTINGS, max_size=2, unique_by=lambda pair: pair[0]),
    }),
    "settings": Kind(2, settings, {"topic": TOPICS, "kind": st.sampled_from([TOPIC] * 8 + [3])}),
}  # fmt: skip
