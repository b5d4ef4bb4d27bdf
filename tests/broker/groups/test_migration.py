"""Groups with members of both protocols over a real log: converted up and down, stored, read back, fenced, refused."""

from __future__ import annotations

import pytest

from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_events import Join, Sync
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH, Heartbeat
from millstream.broker.groups.subscription import read_assignment
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from tests.broker.groups.test_coordinator import World

SESSION, REBALANCE = 30.0, 60.0


class Both(World):
    """Clients of both protocols of the group "g"."""

    def kind(self):
        return self.groups.directory.groups["g"].kind

    def beat(self, member="new", epoch=JOIN_EPOCH, owned=None, instance=None):
        joins = epoch == JOIN_EPOCH
        topics = frozenset(["followed"]) if joins else None
        beat = Heartbeat(
            member, epoch, instance, None, REBALANCE if joins else None, topics, owned={} if joins else owned
        )
        return self.groups.consumer.heartbeat("g", beat)

    def join(self, member="", owned=(), instance=None, id_first=False):
        mine = [ConsumerProtocolSubscriptionTopicPartition("followed", list(owned))] if owned else []
        metadata = b"\0\1" + ConsumerProtocolSubscription(["followed"], None, mine).encode(1)
        join = Join(
            member, instance, "c", "/h", SESSION, REBALANCE, "consumer", [("range", metadata)], id_first=id_first
        )
        return self.groups.join("g", join)

    def sync(self, member, generation, shares=None):
        return self.groups.sync("g", Sync(member, None, generation, "consumer", "range", shares or {}))

    def heartbeat(self, member, generation):
        return self.groups.heartbeat("g", member, None, generation)

    def old(self):
        """A stable classic group of one member, which has both partitions: its id and generation."""
        joined = self.join().result()
        assignment = b"\0\1\0\0\0\1\0\x08followed\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"
        assert self.sync(joined.member_id, joined.generation, {joined.member_id: assignment}).result().error == 0
        return joined.member_id, joined.generation

    def converged(self):
        """A group of one member of each protocol, which has one partition each: id and epoch of both."""
        old, generation = self.old()
        new = self.beat()
        assert new.error == 0 and self.heartbeat(old, generation) == errors.REBALANCE_IN_PROGRESS
        generation = self.join(old).result().generation
        assert self.sync(old, generation).result().error == 0
        new = self.beat("new", new.epoch, owned={})
        assert sum(map(len, new.assignment.values())) == 1
        return old, generation, new.epoch


@pytest.fixture
def world(tmp_path):
    made = Both(tmp_path / "log")
    yield made
    made.stop()
    made.futures.close()


def test_a_classic_group_is_converted_and_what_was_stored_is_all_that_is_needed(world):
    old, generation, epoch = world.converged()
    for _ in range(2):
        group = world.groups.directory.groups["g"]
        assert isinstance(group, ConsumerGroup) and group.state == "Stable"
        assert group.members[old].classic.session_seconds == SESSION and group.members["new"].classic is None
        assert world.heartbeat(old, generation) == 0
        assert world.beat("new", epoch).error == 0
        taken = read_assignment(world.sync(old, generation).result().assignment)
        assert len(taken["followed"]) == 1
        world.restart()


@pytest.mark.parametrize("how", ["leaves", "session", "is removed"])
def test_when_the_last_new_member_is_gone_the_group_is_classic(world, how):
    old, generation, _ = world.converged()
    if how == "leaves":
        assert world.beat("new", LEAVE_EPOCH).error == 0
    elif how == "is removed":
        assert world.groups.leave("g", [("new", None)]) == [0]
    else:
        member = world.groups.directory.groups["g"].members["new"]
        member.deadline = world.now + 5
        world.groups.directory.schedule("g")
        world.pass_seconds(6)
    group = world.groups.directory.groups["g"]
    assert isinstance(group, ClassicGroup) and group.state == "PreparingRebalance"
    assert world.heartbeat(old, generation) == errors.REBALANCE_IN_PROGRESS  # it is not fenced
    joined = world.join(old).result()
    assert (joined.leader, joined.generation) == (old, generation + 1)
    assert world.sync(old, joined.generation, {old: b"x"}).result().assignment == b"x"
    world.restart()
    assert world.kind() == "classic"
    assert world.heartbeat(old, joined.generation) == 0


def test_a_restart_right_after_a_conversion_finds_the_members(world):
    old, generation, _ = world.converged()
    world.beat("new", LEAVE_EPOCH)
    world.restart()
    assert world.kind() == "classic"
    group = world.groups.directory.groups["g"]
    assert (set(group.members), group.generation, group.leader) == ({old}, generation, old)
    assert world.heartbeat(old, generation) == 0
    assert world.beat().error == 0  # and up again
    world.restart()
    assert world.kind() == "consumer"
    assert set(world.groups.directory.groups["g"].members) == {old, "new"}


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [("disabled", 0, 0), ("upgrade", 1, 0), ("downgrade", 0, 1), ("bidirectional", 1, 1)],
)
def test_the_policy_says_which_way(world, policy, up, down):
    world.settings.values["group.consumer.migration.policy"] = policy
    old, _ = world.old()
    assert world.beat().error == (0 if up else errors.GROUP_ID_NOT_FOUND)
    assert world.kind() == ("consumer" if up else "classic")
    if up:
        world.beat("new", LEAVE_EPOCH)
        assert world.kind() == ("classic" if down else "consumer")
        return
    assert world.groups.leave("g", [(old, None)]) == [0]
    assert world.beat().error == 0  # an empty group may always become one of the other kind
    member = world.join(id_first=True).result().member_id
    assert world.join(member).result().error == 0
    world.beat("new", LEAVE_EPOCH)
    assert world.kind() == ("classic" if down else "consumer")


def test_a_classic_member_that_does_not_come_back_in_time_is_out(world):
    old, generation = world.old()
    epoch = world.beat().epoch
    assert world.heartbeat(old, generation) == errors.REBALANCE_IN_PROGRESS
    for _ in range(int(REBALANCE / 10)):
        world.pass_seconds(10)
        world.heartbeat(old, generation)  # it lives, but does not join
    world.pass_seconds(1)
    assert set(world.groups.directory.groups["g"].members) == {"new"}
    assert sum(map(len, world.beat("new", epoch, owned={}).assignment.values())) == 2


def test_a_classic_member_that_joins_and_does_not_sync_is_out(world):
    old, _ = world.old()
    world.beat()
    generation = world.join(old).result().generation
    for _ in range(int(REBALANCE / 10)):
        world.pass_seconds(10)
        world.heartbeat(old, generation)
    world.pass_seconds(1)
    assert set(world.groups.directory.groups["g"].members) == {"new"}


def test_requests_that_wait_are_sent_back_when_the_group_is_converted(world):
    old, _ = world.old()
    waiting = world.join(world.join(id_first=True).result().member_id)
    assert not waiting.done()  # for the first member
    assert world.beat().error == 0
    assert waiting.result().error == errors.REBALANCE_IN_PROGRESS
    assert {old, "new"} < set(world.groups.directory.groups["g"].members)


def test_a_conversion_that_cannot_be_stored_does_not_happen(world, monkeypatch):
    def full(*_):
        raise LogError("the disk is full")

    old, generation = world.old()
    with monkeypatch.context() as patched:
        patched.setattr(world.groups.directory.store, "write", full)
        assert world.beat().error == errors.COORDINATOR_NOT_AVAILABLE
    assert world.kind() == "classic" and world.heartbeat(old, generation) == 0
    epoch = world.beat().epoch
    with monkeypatch.context() as patched:
        patched.setattr(world.groups.directory.store, "write", full)
        assert world.beat("new", LEAVE_EPOCH).error == errors.COORDINATOR_NOT_AVAILABLE
        assert world.kind() == "consumer" and world.beat("new", epoch).error == 0
        world.beat("new", LEAVE_EPOCH)
        world.pass_seconds(3)
        assert world.kind() == "consumer"
    world.pass_seconds(2)  # tried again
    assert world.kind() == "classic"


def test_a_group_of_others_than_consumers_stays_classic(world):
    join = Join("", None, "c", "/h", SESSION, REBALANCE, "connect", [("x", b"")], id_first=False)
    assert world.groups.join("g", join).result().error == 0
    assert world.beat().error == errors.GROUP_ID_NOT_FOUND
    assert world.kind() == "classic"
