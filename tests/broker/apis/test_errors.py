"""Error codes over the wire: produce, fetch, topics, configs, offsets and groups asked for what cannot be."""

import time
import uuid

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.alter_configs import AlterConfigsRequest
from millstream.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocol.messages.offset_delete import OffsetDeleteRequest
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.records import build
from tests.broker.wire import Wire


@pytest.fixture
def wire(broker):
    with Wire(broker.address) as opened:
        yield opened


@pytest.fixture
def topic(wire):
    name = f"e-{uuid.uuid4().hex[:8]}"
    assert wire.ask(CreateTopicsRequest([CreatableTopic(name, 2, 1)], 5000)).topics[0].error_code == 0
    return name


def now():
    return int(time.time() * 1000)


def produce(wire, topic, batch, partition=0, acks=-1, transactional_id=None, version=9):
    request = ProduceRequest(transactional_id, acks, 1000)
    request.topic_data = [TopicProduceData(topic, bytes(16), [PartitionProduceData(partition, batch)])]
    if acks == 0:
        wire.send(request, version)
        return None
    return wire.ask(request, version).responses[0].partition_responses[0]


def create(wire, *args, **kwargs):
    return wire.ask(CreateTopicsRequest([CreatableTopic(*args, **kwargs)], 5000)).topics[0]


def test_produce(wire, topic):
    good = build([(b"k", b"v")], now())
    assert produce(wire, topic, good).base_offset == 0
    assert produce(wire, topic, good, partition=2).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(wire, "missing", good).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert produce(wire, topic, good, acks=3).error_code == errors.INVALID_REQUIRED_ACKS
    assert produce(wire, topic, good[:-1] + b"x").error_code == errors.CORRUPT_MESSAGE
    assert produce(wire, topic, good[:30]).error_code in (errors.CORRUPT_MESSAGE, errors.INVALID_RECORD)
    assert produce(wire, topic, None).error_code == errors.INVALID_RECORD
    assert produce(wire, topic, good + good).error_code == errors.INVALID_RECORD
    assert produce(wire, "__consumer_offsets", good).error_code in (
        errors.INVALID_TOPIC_EXCEPTION,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
    )
    large = build([(b"k", b"v" * 2_000_000)], now())
    assert produce(wire, topic, large).error_code == errors.MESSAGE_TOO_LARGE


def test_idempotent_produce(wire, topic):
    made = wire.ask(InitProducerIdRequest(None, 1000), 5)
    other = wire.ask(InitProducerIdRequest(None, 1000, made.producer_id, 0), 5)
    assert other.producer_id != made.producer_id

    def batch(sequence, epoch=0):
        found = {"producer_id": made.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        return build([(b"k", b"v")], now(), **found)

    first = batch(0)
    assert produce(wire, topic, bytearray(first)).base_offset == 0
    assert produce(wire, topic, bytearray(first)).base_offset == 0  # a duplicate
    assert produce(wire, topic, batch(2)).error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(wire, topic, batch(1)).base_offset == 1
    assert produce(wire, topic, batch(0, 1)).base_offset == 2
    assert produce(wire, topic, batch(2)).error_code == errors.INVALID_PRODUCER_EPOCH


def test_transactional_produce_without_a_transaction(wire, topic):
    batch = build([(b"k", b"v")], now(), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert produce(wire, topic, batch).error_code == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # which one?
    assert produce(wire, topic, batch, transactional_id="none").error_code == errors.INVALID_PRODUCER_ID_MAPPING
    made = wire.ask(InitProducerIdRequest("some", 1000), 5)
    batch = build(
        [(b"k", b"v")], now(), producer_id=made.producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert produce(wire, topic, batch, transactional_id="some").error_code == errors.INVALID_TXN_STATE
    assert produce(wire, topic, batch, transactional_id="some", version=11).error_code == errors.TRANSACTION_ABORTABLE
    assert produce(wire, topic, batch, transactional_id="some", version=12).error_code == 0
    assert wire.ask(InitProducerIdRequest("", 1000), 5).error_code == errors.INVALID_REQUEST
    assert wire.ask(InitProducerIdRequest("x", 10**9), 5).error_code == errors.INVALID_TRANSACTION_TIMEOUT


def test_an_error_without_acknowledgement_closes_the_connection(broker, topic):
    with Wire(broker.address) as wire:
        produce(wire, topic, build([(b"k", b"v")], now()), acks=0)
        assert wire.ask(MetadataRequest(None), 12).brokers
        produce(wire, "missing", build([(b"k", b"v")], now()), acks=0)
        assert wire.closed()


def fetch(wire, topic, offset, partition=0, **changes):
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1_000_000)
    part = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1_000_000, **changes)
    request.topics = [FetchTopic(topic, bytes(16), [part])]
    return wire.ask(request, 12).responses[0].partitions[0]


def test_fetch(wire, topic):
    for _ in range(3):
        produce(wire, topic, build([(b"k", b"v")], now()))
    assert (fetch(wire, topic, 0).high_watermark, len(fetch(wire, topic, 0).records) > 180) == (3, True)
    assert len(fetch(wire, topic, 3).records) == 0
    assert fetch(wire, topic, 4).error_code == errors.OFFSET_OUT_OF_RANGE
    assert fetch(wire, topic, -1).error_code == errors.OFFSET_OUT_OF_RANGE
    assert fetch(wire, topic, 0, partition=9).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(wire, "missing", 0).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(wire, topic, 0, current_leader_epoch=3).error_code == errors.UNKNOWN_LEADER_EPOCH
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic("", b"x" * 16, [FetchPartition(0)])])
    assert wire.ask(request, 13).responses[0].partitions[0].error_code == errors.UNKNOWN_TOPIC_ID


def test_a_small_limit_still_gives_one_batch_of_the_first_partition(wire, topic):
    for partition in (0, 1):
        produce(wire, topic, build([(b"k", b"v" * 500)], now()), partition=partition)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100)
    request.topics = [FetchTopic(topic, bytes(16), [FetchPartition(p, partition_max_bytes=100) for p in (0, 1)])]
    sizes = [len(p.records) for p in wire.ask(request, 12).responses[0].partitions]
    assert sizes[0] > 500
    assert sizes[1] == 0


def test_list_offsets(wire, topic):
    for timestamp in (1000, 3000, 2000):
        produce(wire, topic, build([(b"k", b"v")], timestamp))

    def ask(timestamp, version=11, partition=0):
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, timestamp)])])
        found = wire.ask(request, version).topics[0].partitions[0]
        return found.error_code or (found.offset, found.timestamp)

    assert ask(-2) == (0, -1)
    assert ask(-1) == (3, -1)
    assert ask(-3) == (1, 3000)
    assert ask(-4) == (0, -1)
    assert ask(-5) == (-1, -1)
    assert ask(1500) == (1, 3000)
    assert ask(3001) == (-1, -1)
    assert ask(-3, version=6) == errors.UNSUPPORTED_VERSION
    assert ask(-1, partition=5) == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_create_topics(wire, topic):
    assert create(wire, topic, 1, 1).error_code == errors.TOPIC_ALREADY_EXISTS
    assert create(wire, "a b", 1, 1).error_code == errors.INVALID_TOPIC_EXCEPTION
    assert create(wire, "..", 1, 1).error_code == errors.INVALID_TOPIC_EXCEPTION
    assert create(wire, "x" * 250, 1, 1).error_code == errors.INVALID_TOPIC_EXCEPTION
    assert create(wire, "__transaction_state", 1, 1).error_code != 0
    assert create(wire, "n", 0, 1).error_code == errors.INVALID_PARTITIONS
    assert create(wire, "n", 100_000, 1).error_code == errors.INVALID_PARTITIONS
    assert create(wire, "n", 1, 2).error_code == errors.INVALID_REPLICATION_FACTOR
    for name, value in (("no.such", "1"), ("retention.ms", "x"), ("cleanup.policy", None)):
        assert create(wire, "n", 1, 1, configs=[CreatableTopicConfig(name, value)]).error_code == errors.INVALID_CONFIG
    bad = [CreatableReplicaAssignment(0, [5])]
    assert create(wire, "n", -1, -1, bad).error_code == errors.INVALID_REPLICA_ASSIGNMENT
    assert create(wire, "n", 1, 1, bad).error_code == errors.INVALID_REQUEST
    only = wire.ask(CreateTopicsRequest([CreatableTopic("n", 3, 1)], 5000, True)).topics[0]
    assert (only.error_code, only.num_partitions) == (0, 3)
    twice = wire.ask(CreateTopicsRequest([CreatableTopic("m", 1, 1), CreatableTopic("m", 1, 1)], 5000)).topics
    assert [t.error_code for t in twice] == [errors.INVALID_REQUEST]
    listed = {t.name for t in wire.ask(MetadataRequest(None), 12).topics}
    assert not {"n", "m"} & listed
    assert create(wire, "assigned", -1, -1, [CreatableReplicaAssignment(0, [0])]).num_partitions == 1


def test_metadata_creates_only_when_asked_and_deleting_forgets(wire):
    missing = MetadataRequest([MetadataRequestTopic(name="made-by-metadata")], False)
    assert wire.ask(missing, 12).topics[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    missing.allow_auto_topic_creation = True
    made = wire.ask(missing, 12).topics[0]
    assert (made.error_code, len(made.partitions)) == (0, 1)
    by_id = wire.ask(MetadataRequest([MetadataRequestTopic(made.topic_id, None)]), 12).topics[0]
    assert by_id.name == "made-by-metadata"
    gone = wire.ask(DeleteTopicsRequest([DeleteTopicState(None, made.topic_id)])).responses[0]
    assert (gone.error_code, gone.name) == (0, "made-by-metadata")
    again = wire.ask(DeleteTopicsRequest([DeleteTopicState("made-by-metadata")])).responses[0]
    assert again.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    by_id = wire.ask(MetadataRequest([MetadataRequestTopic(made.topic_id, None)]), 12).topics[0]
    assert by_id.error_code == errors.UNKNOWN_TOPIC_ID
    invalid = wire.ask(MetadataRequest([MetadataRequestTopic(name="a b")]), 12).topics[0]
    assert invalid.error_code == errors.INVALID_TOPIC_EXCEPTION


def test_partitions_and_records(wire, topic):
    def grow(count):
        return (
            wire.ask(CreatePartitionsRequest([CreatePartitionsTopic(topic, count, None)], 5000)).results[0].error_code
        )

    assert grow(2) == grow(1) == errors.INVALID_PARTITIONS
    assert grow(3) == 0
    produce(wire, topic, build([(b"k", b"v")], now()))

    def delete(offset, partition=0):
        part = DeleteRecordsPartition(partition, offset)
        return wire.ask(DeleteRecordsRequest([DeleteRecordsTopic(topic, [part])], 5000)).topics[0].partitions[0]

    assert delete(5).error_code == errors.OFFSET_OUT_OF_RANGE
    assert delete(0, 7).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(-1).low_watermark == 1
    assert fetch(wire, topic, 0).error_code == errors.OFFSET_OUT_OF_RANGE


def test_configs(wire, topic):
    def alter(operation, value, name="cleanup.policy", kind=2, resource=None):
        config = AlterableConfig(name, operation, value)
        made = AlterConfigsResource(kind, topic if resource is None else resource, [config])
        return wire.ask(IncrementalAlterConfigsRequest([made])).responses[0].error_code

    assert alter(0, "compact") == 0
    assert alter(2, "delete") == 0
    assert alter(3, "compact") == 0
    assert alter(1, None) == 0
    assert alter(0, "nonsense") == errors.INVALID_CONFIG
    assert alter(0, "1", name="no.such") == errors.INVALID_CONFIG
    assert alter(2, "1", name="retention.ms") == errors.INVALID_CONFIG
    assert alter(9, "1") == errors.INVALID_REQUEST
    assert alter(0, "1", name="retention.ms", resource="missing") == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(0, "x", name="retention.ms", resource="missing") == errors.INVALID_CONFIG  # looked at first
    assert alter(0, "1", kind=4, resource="0") == errors.INVALID_REQUEST
    assert wire.ask(AlterConfigsRequest([])).responses == []


def test_groups_that_are_not_there(wire):
    assert wire.ask(DeleteGroupsRequest(["none", ""])).results[0].error_code == errors.GROUP_ID_NOT_FOUND
    assert wire.ask(OffsetDeleteRequest("none")).error_code == errors.GROUP_ID_NOT_FOUND
