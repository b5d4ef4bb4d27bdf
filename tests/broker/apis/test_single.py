"""What a cluster of one broker answers about places: folders, leaders and replicas can be only where they are."""

import uuid

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.describe_cluster import DescribeClusterRequest
from millstream.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from millstream.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millstream.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.records import build
from tests.broker.wire import Wire


@pytest.fixture
def wire(broker):
    with Wire(broker.address) as opened:
        yield opened


@pytest.fixture
def name(wire):
    made = f"p-{uuid.uuid4().hex[:8]}"
    assert wire.ask(CreateTopicsRequest([CreatableTopic(made, 2, 1)], 5000)).topics[0].error_code == 0
    return made


def test_the_folder_tells_the_sizes_of_what_is_asked_for(wire, name):
    batch = build([(None, b"x" * 1000)], 1)
    wire.ask(
        ProduceRequest(None, -1, 5000, [TopicProduceData(name, partition_data=[PartitionProduceData(1, batch)])]), 9
    )
    (folder,) = wire.ask(DescribeLogDirsRequest([DescribableLogDirTopic(name, [0, 1, 7])])).results
    (topic,) = folder.topics
    assert [(p.partition_index, p.partition_size) for p in topic.partitions] == [(0, 0), (1, len(batch))]
    assert folder.total_bytes > folder.usable_bytes > 0
    assert name in {t.name for t in wire.ask(DescribeLogDirsRequest(None)).results[0].topics}


def test_partitions_stay_in_the_one_folder(wire, name):
    path = wire.ask(DescribeLogDirsRequest(None)).results[0].log_dir
    wanted = [AlterReplicaLogDirTopic(name, [0, 7])]
    answer = wire.ask(
        AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, wanted), AlterReplicaLogDir("/other", wanted)])
    )
    assert [[p.error_code for p in topic.partitions] for topic in answer.results] == [
        [0, errors.UNKNOWN_TOPIC_OR_PARTITION],
        [errors.LOG_DIR_NOT_FOUND] * 2,
    ]


def test_no_leader_has_to_be_elected(wire, name):
    answer = wire.ask(ElectLeadersRequest(0, [TopicPartitions(name, [0, 7])]))
    assert [p.error_code for p in answer.replica_election_results[0].partition_result] == [
        errors.ELECTION_NOT_NEEDED,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert wire.ask(ElectLeadersRequest(0, None)).replica_election_results == []


def test_replicas_can_only_be_where_they_are(wire, name):
    node = wire.ask(DescribeClusterRequest()).controller_id
    parts = [
        ReassignablePartition(0, [node]),
        ReassignablePartition(1, [node, node + 1]),
        ReassignablePartition(1, None),
        ReassignablePartition(7, [node]),
    ]
    (topic,) = wire.ask(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name, parts)])).responses
    assert [p.error_code for p in topic.partitions] == [
        0,
        errors.INVALID_REPLICA_ASSIGNMENT,
        errors.NO_REASSIGNMENT_IN_PROGRESS,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert wire.ask(ListPartitionReassignmentsRequest()).topics == []


def test_the_cluster_is_the_broker(wire, broker):
    answer = wire.ask(DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert [f"{b.host}:{b.port}" for b in answer.brokers] == [broker.address]
    assert answer.controller_id == answer.brokers[0].broker_id
    assert answer.cluster_authorized_operations > 0
    assert wire.ask(DescribeClusterRequest(endpoint_type=2)).error_code == errors.MISMATCHED_ENDPOINT_TYPE
