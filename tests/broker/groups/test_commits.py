"""What is on disk before a commit of offsets is answered or shown: what is said of topics of durability `commit`."""

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.noted import Noted

pytestmark = pytest.mark.system
OFFSETS = "__consumer_offsets-0"


@pytest.fixture
def inside(tmp_path, monkeypatch):
    with Noted(tmp_path / "data", monkeypatch, **{"log.retention.check.interval.ms": "3600000"}) as broker:
        with broker.wire() as wire:
            create(wire, "c", "commit")
            create(wire, "o", "os")
        broker.told()
        yield broker


@pytest.fixture
def everything(tmp_path, monkeypatch):
    """A broker whose default durability is `commit`, so that of its internal topics is."""
    with Noted(tmp_path / "data", monkeypatch, **{"millstream.durability": "commit"}) as broker:
        with broker.wire() as wire:
            create(wire, "c", "commit")
        broker.told()
        yield broker


def create(wire, name, durability):
    config = [CreatableTopicConfig("millstream.durability", durability)]
    answer = wire.ask(CreateTopicsRequest([CreatableTopic(name, 1, 1, configs=config)], 5000), 5)
    assert answer.topics[0].error_code == 0


def commit(topic, offset, group="g"):
    part = OffsetCommitRequestPartition(0, offset)
    return OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(topic, partitions=[part])])


def committed(wire, topic, offset, group="g"):
    return wire.ask(commit(topic, offset, group), 8).topics[0].partitions[0].error_code


def fetch(topic, group="g"):
    topics = [OffsetFetchRequestTopics(topic, partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)])


def fetched(answer):
    [group] = answer.groups
    return group.error_code or group.topics[0].partitions[0].committed_offset


def test_offsets_of_commit_topics_are_synced_before_the_answer(inside):
    with inside.wire() as wire:
        for offset in range(3):
            assert committed(wire, "c", offset) == 0
            assert inside.told() == [("write", OFFSETS), ("sync", OFFSETS)]
        assert fetched(wire.ask(fetch("c"), 8)) == 2
        assert inside.told() == []


def test_offsets_of_other_topics_wait_for_nothing(inside):
    with inside.wire() as wire, inside.wire() as other:
        assert committed(wire, "o", 1) == 0
        assert fetched(wire.ask(fetch("o"), 8)) == 1
        assert inside.told() == [("write", OFFSETS)]
        let_go = inside.hold(OFFSETS)
        other.send(commit("c", 5, "careful"), 8)
        inside.until_noted(("write", OFFSETS))
        # Another group of the same partition.
        assert committed(wire, "o", 2) == 0
        assert fetched(wire.ask(fetch("o"), 8)) == 2
        let_go()
        assert other.receive(commit("c", 5), 8).topics[0].partitions[0].error_code == 0


def test_what_may_go_back_is_not_shown(inside):
    with inside.wire() as wire, inside.wire() as other:
        assert committed(wire, "c", 1) == 0
        let_go = inside.hold(OFFSETS)
        inside.told()
        wire.send(commit("c", 2), 8)
        inside.until_noted(("write", OFFSETS))
        other.send(fetch("c"), 8)
        other.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            other.socket.recv(1)
        other.socket.settimeout(10)
        let_go()
        assert fetched(other.receive(fetch("c"), 8)) == 2
        assert wire.receive(commit("c", 2), 8).topics[0].partitions[0].error_code == 0


def test_a_commit_that_the_disk_refuses_is_neither_acknowledged_nor_shown(inside):
    with inside.wire() as wire:
        assert committed(wire, "c", 1) == 0
        inside.fail("sync", OFFSETS)
        assert committed(wire, "c", 2) == errors.COORDINATOR_NOT_AVAILABLE
        assert fetched(wire.ask(fetch("c"), 8)) == errors.COORDINATOR_NOT_AVAILABLE
        inside.mend()
        inside.told()
        assert committed(wire, "c", 3) == errors.COORDINATOR_NOT_AVAILABLE
        assert fetched(wire.ask(fetch("c"), 8)) == errors.COORDINATOR_NOT_AVAILABLE
        assert inside.told() == [], "a sync was tried again after it had failed"
    inside.end()
    inside.start()
    with inside.wire() as wire:
        assert fetched(wire.ask(fetch("c"), 8)) in (1, 2)
        assert committed(wire, "c", 3) == 0


def test_removals_are_synced_before_the_answer(inside):
    with inside.wire() as wire:
        assert committed(wire, "c", 1) == 0 and committed(wire, "c", 1, "h") == 0
        inside.told()
        gone = OffsetDeleteRequestTopic("c", [OffsetDeleteRequestPartition(0)])
        assert wire.ask(OffsetDeleteRequest("g", [gone]), 0).topics[0].partitions[0].error_code == 0
        assert inside.told() == [("write", OFFSETS), ("sync", OFFSETS)]
        assert wire.ask(DeleteGroupsRequest(["h"]), 2).results[0].error_code == 0
        assert inside.told() == [("write", OFFSETS), ("sync", OFFSETS)]
        assert committed(wire, "c", 1) == 0
        inside.told()
        assert wire.ask(DeleteTopicsRequest([DeleteTopicState("c")], [], 5000), 6).responses[0].error_code == 0
        assert inside.told() == [("write", OFFSETS), ("sync", OFFSETS)]


def join(member="", group="g"):
    return JoinGroupRequest(group, 10_000, 10_000, member, None, "consumer", [JoinGroupRequestProtocol("range", b"")])


def a_life(wire, group="g"):
    """A member joins, gets its assignment and leaves."""
    member = wire.ask(join(group=group), 5).member_id
    joined = wire.ask(join(member, group), 5)
    assert joined.error_code == 0
    mine = [SyncGroupRequestAssignment(member, b"all")]
    synced = wire.ask(SyncGroupRequest(group, joined.generation_id, member, assignments=mine), 3)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    left = wire.ask(LeaveGroupRequest(group, members=[MemberIdentity(member)]), 3)
    assert left.error_code == left.members[0].error_code == 0


def test_groups_themselves_wait_for_nothing(inside):
    """A generation that goes back fences its members; what was committed under it is on disk, and it with that."""
    with inside.wire() as wire:
        a_life(wire)
        beat = ConsumerGroupHeartbeatRequest("new", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["c"])
        beat.topic_partitions = []
        assert wire.ask(beat, 1).error_code == 0
        assert inside.told() == [("write", OFFSETS)]


def test_unless_the_offsets_topic_is_commit_itself(everything):
    with everything.wire() as wire:
        a_life(wire)
        told = everything.told()
        assert told == [("write", OFFSETS), ("sync", OFFSETS)] * 2, "once for the generation, once for its end"
        beat = ConsumerGroupHeartbeatRequest("new", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["c"])
        beat.topic_partitions = []
        assert wire.ask(beat, 1).error_code == 0
        assert everything.told() == [("write", OFFSETS), ("sync", OFFSETS)]
        assert committed(wire, "c", 1) == 0
        assert everything.told() == [("write", OFFSETS), ("sync", OFFSETS)]
        everything.fail("sync", OFFSETS)
        assert wire.ask(join(group="other"), 5).error_code == errors.MEMBER_ID_REQUIRED
        beat.group_id = "another"
        assert wire.ask(beat, 1).error_code == errors.COORDINATOR_NOT_AVAILABLE
