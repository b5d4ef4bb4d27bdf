"""Every API in every version that ApiVersions announces gives an answer that can be read in that version."""

import struct

import pytest

from millstream.broker.apis import APIS
from millstream.protocol import errors
from millstream.protocol.messages import APIS as KAFKA
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsTopic
from millstream.protocol.messages.describe_configs import DescribeConfigsResource
from millstream.protocol.messages.fetch import FetchPartition, FetchTopic
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.offset_for_leader_epoch import OffsetForLeaderPartition, OffsetForLeaderTopic
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.records import build
from tests.broker.wire import Wire

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic_id(broker):
    with Wire(broker.address) as wire:
        [made] = wire.ask(CreateTopicsRequest([CreatableTopic("v", 2, 1)], 5000)).topics
        assert made.error_code == 0
        return made.topic_id


def filled(api, version, topic_id):
    """A request with something in it, where an empty one would exercise too little."""
    request = api.request()()
    match api.name:
        case "Produce":
            topic = TopicProduceData(partition_data=[PartitionProduceData(0, build([(b"k", b"v")], NOW))])
            topic.name, topic.topic_id = ("", topic_id) if version >= 13 else ("v", bytes(16))
            return ProduceRequest(None, -1, 1000, [topic])
        case "Fetch":
            topic = FetchTopic(partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)])
            topic.topic, topic.topic_id = ("", topic_id) if version >= 13 else ("v", bytes(16))
            request.topics, request.max_bytes = [topic], 10_000
        case "ListOffsets":
            request.topics = [
                ListOffsetsTopic("v", [ListOffsetsPartition(i, timestamp=t) for i, t in ((0, -1), (1, NOW))])
            ]
        case "DescribeConfigs":
            request.resources = [DescribeConfigsResource(2, "v", None), DescribeConfigsResource(4, "0", None)]
        case "OffsetCommit":
            topic = OffsetCommitRequestTopic(partitions=[OffsetCommitRequestPartition(0, 7, committed_metadata="m")])
            topic.name, topic.topic_id = ("", topic_id) if version >= 10 else ("v", bytes(16))
            request.group_id, request.topics = "versions", [topic]
        case "OffsetFetch" if version >= 8:
            topic = OffsetFetchRequestTopics(
                "" if version >= 10 else "v", topic_id if version >= 10 else bytes(16), [0]
            )
            request.groups = [
                OffsetFetchRequestGroup("versions", topics=[topic]),
                OffsetFetchRequestGroup("v2", topics=None),
            ]
        case "OffsetFetch":
            request.group_id, request.topics = "versions", [OffsetFetchRequestTopic("v", [0, 1])]
        case "OffsetForLeaderEpoch":
            request.topics = [OffsetForLeaderTopic("v", [OffsetForLeaderPartition(0, leader_epoch=0)])]
        case "DeleteRecords":
            request.topics = [DeleteRecordsTopic("v", [DeleteRecordsPartition(0, 0)])]
        case "AddPartitionsToTxn" if version >= 4:
            request.transactions = [
                AddPartitionsToTxnTransaction("t", 1, 0, False, [AddPartitionsToTxnTopic("v", [0])])
            ]
        case "InitProducerId":
            request.transactional_id, request.transaction_timeout_ms = "versions", 1000
        case "ApiVersions":
            request.client_software_name = request.client_software_version = "test" if version >= 3 else ""
        case "Metadata":
            request.topics = [] if version == 0 else None
    return request


@pytest.mark.parametrize("api", [KAFKA[key] for key in APIS], ids=lambda api: api.name)
def test_every_announced_version_is_answered(broker, topic_id, api):
    with Wire(broker.address) as wire:
        for version in range(APIS[api.key].first, APIS[api.key].last + 1):
            wire.ask(filled(api, version, topic_id), version)


def test_announced_versions_are_those_of_the_table(broker):
    with Wire(broker.address) as wire:
        answer = wire.ask(ApiVersionsRequest("test", "1"), 4)
    assert {(k.api_key, k.max_version) for k in answer.api_keys} == {(a.key, a.last) for a in APIS.values()}
    assert [k.min_version for k in answer.api_keys if k.api_key == 0] == [0]  # KIP-896


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker):
    with Wire(broker.address) as wire:
        body = struct.pack(">hhih", 18, 99, 7, -1) + b"whatever"
        wire.socket.sendall(struct.pack(">i", len(body)) + body)
        answer = wire.receive(ApiVersionsRequest(), 0)
        assert answer.error_code == errors.UNSUPPORTED_VERSION
        assert [(k.api_key, k.min_version, k.max_version) for k in answer.api_keys] == [(18, 0, 4)]
        assert wire.ask(MetadataRequest(None), 12).brokers  # the connection goes on
