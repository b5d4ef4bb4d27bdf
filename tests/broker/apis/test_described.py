"""What administrators see over the wire: producers, transactions, static members, offsets with their metadata."""

import time
import uuid

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.describe_groups import DescribeGroupsRequest
from millstream.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.protocol.messages.list_transactions import ListTransactionsRequest
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.protocol.records import build
from tests.broker.wire import Wire


@pytest.fixture
def wire(broker):
    with Wire(broker.address) as opened:
        yield opened


@pytest.fixture
def name(wire):
    made = f"d-{uuid.uuid4().hex[:8]}"
    assert wire.ask(CreateTopicsRequest([CreatableTopic(made, 2, 1)], 5000)).topics[0].error_code == 0
    return made


class Transaction:
    """A transaction of version 1, in which a record is written to partition 0."""

    def __init__(self, wire, name):
        self.wire, self.name = wire, name
        made = wire.ask(InitProducerIdRequest(name, 30_000), 4)
        self.producer, self.epoch = made.producer_id, made.producer_epoch
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=self.producer,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, [0, 1])],
        )
        added = wire.ask(request, 3).results_by_topic_v3_and_below[0].results_by_partition
        assert [part.partition_error_code for part in added] == [0, 0]
        batch = build(
            [(b"k", b"v")] * 3,
            int(time.time() * 1000),
            producer_id=self.producer,
            producer_epoch=self.epoch,
            base_sequence=0,
            transactional=True,
        )
        parts = [TopicProduceData(name, bytes(16), [PartitionProduceData(0, batch)])]
        answer = wire.ask(ProduceRequest(name, -1, 5000, parts), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def end(self, commit):
        assert self.wire.ask(EndTxnRequest(self.name, self.producer, self.epoch, commit), 3).error_code == 0


def listed(wire, version=2, **filters):
    answer = wire.ask(ListTransactionsRequest(**filters), version)
    return {found.transactional_id: found.transaction_state for found in answer.transaction_states}


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_are_described_and_listed(wire, name, commit):
    before = int(time.time() * 1000)
    transaction = Transaction(wire, name)
    [told] = wire.ask(DescribeTransactionsRequest([name])).transaction_states
    assert (told.error_code, told.transaction_state, told.transaction_timeout_ms) == (0, "Ongoing", 30_000)
    assert (told.producer_id, told.producer_epoch) == (transaction.producer, transaction.epoch)
    assert [(topic.topic, sorted(topic.partitions)) for topic in told.topics] == [(name, [0, 1])]
    assert before <= told.transaction_start_time_ms <= int(time.time() * 1000)
    assert listed(wire)[name] == "Ongoing"
    assert listed(wire, state_filters=["Ongoing"])[name] == "Ongoing"
    assert name not in listed(wire, state_filters=["Empty", "CompleteCommit"])
    assert list(listed(wire, producer_id_filters=[transaction.producer])) == [name]
    assert name not in listed(wire, producer_id_filters=[transaction.producer + 1000])
    assert name not in listed(wire, duration_filter=60_000)
    time.sleep(0.002)
    assert name in listed(wire, duration_filter=0)
    assert list(listed(wire, transactional_id_pattern=name[:-1] + ".")) == [name]
    assert not listed(wire, transactional_id_pattern="none.*")
    refused = wire.ask(ListTransactionsRequest(transactional_id_pattern="(a"), 2)
    assert refused.error_code == errors.INVALID_REGULAR_EXPRESSION
    assert wire.ask(ListTransactionsRequest(["Ongoing", "Nonsense"])).unknown_state_filters == ["Nonsense"]
    transaction.end(commit)
    [told] = wire.ask(DescribeTransactionsRequest([name])).transaction_states
    assert told.transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    assert told.topics == []
    assert name not in listed(wire, duration_filter=0)
    [none] = wire.ask(DescribeTransactionsRequest(["never"])).transaction_states
    assert none.error_code == errors.TRANSACTIONAL_ID_NOT_FOUND


def test_producers_of_a_partition_are_described(wire, name):
    def producers(index=0, topic=name):
        answer = wire.ask(DescribeProducersRequest([TopicRequest(topic, [index])]))
        return answer.topics[0].partitions[0]

    assert producers().active_producers == []
    transaction = Transaction(wire, name)
    [found] = producers().active_producers
    assert (found.producer_id, found.producer_epoch) == (transaction.producer, transaction.epoch)
    assert (found.last_sequence, found.current_txn_start_offset) == (2, 0)
    assert abs(found.last_timestamp - time.time() * 1000) < 60_000
    assert producers(1).active_producers == []  # it has written nothing there
    transaction.end(True)
    [found] = producers().active_producers
    assert (found.last_sequence, found.current_txn_start_offset) == (2, -1)
    assert producers(7).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert producers(topic="missing").error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


def join(wire, group, member="", instance="one"):
    request = JoinGroupRequest(group, 30_000, 30_000, member, instance, "consumer")
    request.protocols = [JoinGroupRequestProtocol("range", b"")]
    return wire.ask(request, 9)


def test_a_static_member_keeps_its_place_and_fences_its_predecessor(wire, name):
    first = join(wire, name)
    assert (first.error_code, first.leader) == (0, first.member_id)
    given = [SyncGroupRequestAssignment(first.member_id, b"mine")]
    sync = SyncGroupRequest(name, first.generation_id, first.member_id, "one", "consumer", "range", given)
    assert wire.ask(sync, 5).assignment == b"mine"
    second = join(wire, name)  # it is back, after a crash, with no id
    assert (second.error_code, second.generation_id) == (0, first.generation_id)
    assert second.member_id != first.member_id
    sync = SyncGroupRequest(name, second.generation_id, second.member_id, "one", "consumer", "range", [])
    assert wire.ask(sync, 5).assignment == b"mine"  # without a rebalance
    sync.member_id = first.member_id
    assert wire.ask(sync, 5).error_code == errors.FENCED_INSTANCE_ID
    [told] = wire.ask(DescribeGroupsRequest([name])).groups
    assert [(m.group_instance_id, m.member_id) for m in told.members] == [("one", second.member_id)]
    gone = wire.ask(LeaveGroupRequest(name, members=[MemberIdentity("", "one")]), 5)  # by an administrator
    assert [member.error_code for member in gone.members] == [0]
    assert wire.ask(DescribeGroupsRequest([name])).groups[0].members == []


def test_offsets_keep_their_metadata_and_some_are_too_large(wire, name):
    parts = [
        OffsetCommitRequestPartition(0, 5, 0, "where it came from: ü"),
        OffsetCommitRequestPartition(1, 6, 0, "x" * 5000),
    ]
    request = OffsetCommitRequest(name, topics=[OffsetCommitRequestTopic(name, bytes(16), parts)])
    answer = wire.ask(request, 9).topics[0].partitions
    assert [part.error_code for part in answer] == [0, errors.OFFSET_METADATA_TOO_LARGE]
    asked = OffsetFetchRequestGroup(name, topics=[OffsetFetchRequestTopics(name, bytes(16), [0, 1])])
    told = wire.ask(OffsetFetchRequest(groups=[asked]), 9).groups[0].topics[0].partitions
    assert [(part.committed_offset, part.metadata) for part in told] == [(5, "where it came from: ü"), (-1, "")]


def test_offsets_expire_by_the_time_that_their_commit_brought(tmp_path):
    """OffsetCommit 2-4 (OffsetMetadataManager.expireTimestampMs); the rest is in groups/test_coordinator.py."""
    from tests.broker.inside import Inside

    with (
        Inside(tmp_path / "data", **{"offsets.retention.check.interval.ms": "100"}) as inside,
        Wire(inside.address) as wire,
    ):
        wire.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)], 5000))
        for index, retention in ((0, 300), (1, 3_600_000)):
            part = [OffsetCommitRequestPartition(index, 5)]
            commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", bytes(16), part)])
            commit.retention_time_ms = retention
            assert wire.ask(commit, 3).topics[0].partitions[0].error_code == 0

        def offsets():
            asked = OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopics("t", bytes(16), [0, 1])])
            answer = wire.ask(OffsetFetchRequest(groups=[asked]), 9).groups[0].topics[0].partitions
            return [part.committed_offset for part in answer]

        assert offsets() == [5, 5]
        inside.until(lambda: offsets() == [-1, 5])
