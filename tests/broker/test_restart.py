"""A broker killed and started again: groups, offsets and transactions are as they were; members need not rejoin."""

import signal
import time

import pytest

from millstream.broker.internal_topics import java_hash
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.describe_groups import DescribeGroupsRequest
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.heartbeat import HeartbeatRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.serving import Process
from tests.broker.wire import Wire

pytestmark = pytest.mark.system


def test_the_hash_is_javas():
    assert java_hash("hello") == 99162322
    assert java_hash("") == 0
    assert java_hash("grüße") == java_hash("grüße")
    assert java_hash("a" * 50) < 2**31


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_everything_is_there_again(tmp_path, how):
    with Process(tmp_path / "data") as broker:
        with Wire(broker.address) as wire:
            topic = wire.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1)], 5000)).topics[0]
            join = JoinGroupRequest("classic", 30_000, 60_000, protocol_type="consumer")
            join.protocols = [JoinGroupRequestProtocol("range", b"meta")]
            join.member_id = wire.ask(join, 9).member_id
            joined = wire.ask(join, 9)
            sync = SyncGroupRequest("classic", joined.generation_id, joined.member_id, None, "consumer", "range")
            sync.assignments = [SyncGroupRequestAssignment(joined.member_id, b"share")]
            assert wire.ask(sync, 5).assignment == b"share"
            for offset in range(1, 50):
                commit = OffsetCommitRequest("classic", joined.generation_id, joined.member_id)
                commit.topics = [
                    OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(1, offset, -1, "m")])
                ]
                assert wire.ask(commit, 9).topics[0].partitions[0].error_code == 0
            new = ConsumerGroupHeartbeatRequest("new", "me", 0, rebalance_timeout_ms=1000, topic_partitions=[])
            new.subscribed_topic_names = ["t"]
            lives = wire.ask(new, 1)
            assert lives.assignment.topic_partitions[0].partitions == [0, 1]
            made = wire.ask(InitProducerIdRequest("tx", 60_000), 5)
            add = AddPartitionsToTxnRequest()
            add.v3_and_below_transactional_id, add.v3_and_below_producer_id = "tx", made.producer_id
            add.v3_and_below_topics = [AddPartitionsToTxnTopic("t", [0])]
            wire.ask(add, 3)
            wire.ask(InitProducerIdRequest("timed", 300), 5)
            add.v3_and_below_transactional_id = "timed"
            add.v3_and_below_producer_id = wire.ask(InitProducerIdRequest("timed", 300), 5).producer_id
            add.v3_and_below_producer_epoch = 1
            assert wire.ask(add, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        broker.end(how)
        broker.start()
        with Wire(broker.address) as wire:
            assert wire.ask(HeartbeatRequest("classic", joined.generation_id, joined.member_id), 4).error_code == 0
            [group] = wire.ask(DescribeGroupsRequest(["classic"]), 5).groups
            assert (group.group_state, group.members[0].member_assignment) == ("Stable", b"share")
            fetched = wire.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("classic", topics=None)]), 8)
            [part] = fetched.groups[0].topics[0].partitions
            assert (part.partition_index, part.committed_offset, part.metadata) == (1, 49, "m")
            new.member_epoch, new.topic_partitions, new.rebalance_timeout_ms = lives.member_epoch, None, -1
            again = wire.ask(new, 1)
            assert (again.error_code, again.member_epoch) == (0, lives.member_epoch)
            [state] = wire.ask(DescribeTransactionsRequest(["tx"])).transaction_states
            assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [0])
            assert wire.ask(EndTxnRequest("tx", made.producer_id, 0, True), 4).error_code == 0
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:  # an open transaction times out after a restart, too
                [state] = wire.ask(DescribeTransactionsRequest(["timed"])).transaction_states
                if state.transaction_state == "CompleteAbort":
                    break
            assert state.transaction_state == "CompleteAbort"
            assert topic.topic_id != bytes(16)
