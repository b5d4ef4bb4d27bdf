"""Groups whose members speak both protocols, and static members of the new one: the same answers as Apache Kafka's, step by step.

Each scenario is a function of one broker that returns what it saw. KIP-848 (online upgrade and downgrade), KIP-345.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from millstream.broker.groups.subscription import read_assignment, write_assignment
from millstream.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from millstream.protocol.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from millstream.protocol.messages.describe_groups import DescribeGroupsRequest
from millstream.protocol.messages.heartbeat import HeartbeatRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.protocol.messages.list_groups import ListGroupsRequest
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.differential.steps import play
from tests.differential.world import World

pytestmark = [pytest.mark.system, pytest.mark.proof]
CREATE = ("create", {"topic": 0, "count": 2, "factor": 1, "settings": [], "only": False})
NEW, OTHER, THIRD = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


class Group:
    """One group on one broker; ids of members are shown as the names that the scenario gave them."""

    def __init__(self, address: str) -> None:
        self.world = World(address, uuid.uuid4().hex[:8])
        play(self.world, CREATE)
        self.topic, self.id = self.world.name("t", 0), self.world.name("g", 0)
        self.topic_id = self.world.topic_ids[self.topic]
        self.names = {NEW: "new", OTHER: "other", THIRD: "third", "": ""}
        self.seen: list[Any] = []

    def show(self, *facts: Any) -> None:
        self.seen.append(facts)

    def ask(self, request: Any, version: int) -> Any:
        answer = self.world.ask(request, version)
        assert not isinstance(answer, str), f"{request} is answered with {answer}"
        return answer

    # ---- the new protocol

    def beat(self, member: str, epoch: int, owned: list[int] | None = None, instance: str | None = None) -> Any:
        joins = epoch == 0
        mine = None if owned is None else [ConsumerGroupHeartbeatRequestTopicPartitions(self.topic_id, owned)]
        if joins or owned == []:
            mine = []
        request = ConsumerGroupHeartbeatRequest(self.id, member, epoch, instance, None, -1, None, None, None, mine)
        if joins:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 60_000, [self.topic]
        answer = self.ask(request, 1)
        given = None
        if answer.assignment is not None:
            given = sum(len(t.partitions) for t in answer.assignment.topic_partitions)
        self.show("beat", self.names[member], epoch, answer.error_code, answer.member_epoch, given)
        return answer

    # ---- the classic protocol

    def join(
        self,
        name: str,
        member: str = "",
        owned: tuple[int, ...] | list[int] = (),
        instance: str | None = None,
        protocols: Any = None,
    ) -> Any:
        mine = [ConsumerProtocolSubscriptionTopicPartition(self.topic, list(owned))] if owned else []
        metadata = b"\0\1" + ConsumerProtocolSubscription([self.topic], None, mine).encode(1)
        wanted = [JoinGroupRequestProtocol(each, metadata) for each in protocols or ["range", "roundrobin"]]
        answer = self.ask(JoinGroupRequest(self.id, 45_000, 60_000, member, instance, "consumer", wanted), 9)
        if answer.member_id:
            self.names[answer.member_id] = name
        members = sorted(self.names[m.member_id] for m in answer.members)
        self.show("join", name, answer.error_code, answer.generation_id, answer.protocol_name)
        self.show("its members", self.names.get(answer.leader), members, answer.skip_assignment)
        return answer

    def enter(self, name: str) -> Any:
        return self.join(name, self.join(name).member_id)

    def sync(self, member: str, generation: int, shares: dict[str, list[int]] | None = None, **more: Any) -> list[int]:
        given = [
            SyncGroupRequestAssignment(m, write_assignment({self.topic: parts}, b"\0\1"))
            for m, parts in (shares or {}).items()
        ]
        request = SyncGroupRequest(self.id, generation, member, more.get("instance"), "consumer", "range", given)
        for field in ("protocol_type", "protocol_name"):
            setattr(request, field, more.get(field, getattr(request, field)))
        answer = self.ask(request, 5)
        parts = sorted(read_assignment(bytes(answer.assignment)).get(self.topic, ()))
        self.show(
            "sync", self.names.get(member), answer.error_code, answer.protocol_type, answer.protocol_name, len(parts)
        )
        return parts

    def heartbeat(self, member: str, generation: int, instance: str | None = None) -> int:
        error = self.ask(HeartbeatRequest(self.id, generation, member, instance), 4).error_code
        self.show("heartbeat", self.names.get(member), generation, error)
        return error

    def leave(self, *members: tuple[str, str | None]) -> None:
        answer = self.ask(LeaveGroupRequest(self.id, members=[MemberIdentity(m, i) for m, i in members]), 5)
        self.show("leave", answer.error_code, [m.error_code for m in answer.members])

    # ---- others

    def commit(self, member: str, epoch: int, version: int, instance: str | None = None) -> None:
        parts = [OffsetCommitRequestPartition(0, 5)]
        request = OffsetCommitRequest(
            self.id, epoch, member, instance, topics=[OffsetCommitRequestTopic(self.topic, partitions=parts)]
        )
        self.show("commit", self.names.get(member), self.ask(request, version).topics[0].partitions[0].error_code)

    def fetch(self, member: str, epoch: int) -> None:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.id, member, epoch, None)])
        self.show("fetch", self.names.get(member), self.ask(request, 9).groups[0].error_code)

    def look(self) -> None:
        """What administrators see."""
        [group] = self.ask(ConsumerGroupDescribeRequest([self.id]), 1).groups
        members = sorted(
            (
                self.names.get(m.member_id), m.instance_id, m.member_epoch, m.member_type,
                sum(len(t.partitions) for t in m.assignment.topic_partitions),
                sum(len(t.partitions) for t in m.target_assignment.topic_partitions),
            )
            for m in group.members
        )  # fmt: skip
        self.show("described", group.error_code, group.group_state, group.group_epoch, group.assignment_epoch, members)
        [old] = self.ask(DescribeGroupsRequest([self.id]), 6).groups
        members = sorted((self.names.get(m.member_id), m.group_instance_id) for m in old.members)
        self.show(
            "described as classic", old.error_code, old.group_state, old.protocol_type, old.protocol_data, members
        )
        listed = [g for g in self.ask(ListGroupsRequest(), 5).groups if g.group_id == self.id]
        self.show("listed", [(g.protocol_type, g.group_state, g.group_type) for g in listed])

    def stable_classic(self, name: str = "old", instance: str | None = None) -> Any:
        """A classic group of one member that has both partitions."""
        joined = self.join(name, instance=instance) if instance else self.enter(name)
        self.sync(joined.member_id, joined.generation_id, {joined.member_id: [0, 1]}, instance=instance)
        return joined


def static_members(group: Group) -> None:
    """L3: one that names an instance is looked for by that alone."""
    one = group.beat(NEW, 0, instance="inst-1")
    group.beat(OTHER, one.member_epoch + 10, instance="inst-1")  # an unknown member with a known instance
    group.beat(OTHER, one.member_epoch, [], instance="inst-1")
    group.beat(NEW, one.member_epoch, instance="inst-2")  # the real member with an unknown instance
    group.beat(NEW, one.member_epoch + 1, instance="inst-2")
    group.beat(OTHER, one.member_epoch, instance="inst-2")  # both unknown
    group.beat(OTHER, 0, instance="inst-1")  # taken
    group.beat(OTHER, -1, instance="inst-1")
    group.beat(NEW, -1, instance="inst-2")
    group.beat(NEW, -2, instance="inst-1")
    group.look()
    two = group.beat(OTHER, 0, instance="inst-1")  # comes back under a new id
    group.beat(NEW, one.member_epoch, instance="inst-1")  # the replaced one
    group.beat(NEW, -2, instance="inst-1")
    group.beat(NEW, -1, instance="inst-1")
    group.beat(NEW, one.member_epoch)
    group.beat(OTHER, two.member_epoch, instance="inst-1")
    group.beat(OTHER, two.member_epoch)
    group.leave((NEW, "inst-1"))
    group.leave((OTHER, "inst-2"), ("", "inst-2"))
    group.leave(("", "inst-1"))
    group.look()


def upgrade(group: Group) -> None:
    old = group.stable_classic()
    group.heartbeat(old.member_id, old.generation_id)
    new = group.beat(NEW, 0)
    group.look()
    group.heartbeat(old.member_id, old.generation_id + 1)
    group.heartbeat(old.member_id, old.generation_id)
    group.sync(old.member_id, old.generation_id)
    group.commit(old.member_id, old.generation_id, 8)
    group.commit(old.member_id, old.generation_id, 9)
    group.commit(old.member_id, old.generation_id + 1, 8)
    group.commit(NEW, new.member_epoch, 8)
    group.commit(NEW, new.member_epoch, 9)
    group.commit(NEW, new.member_epoch + 1, 9)
    group.fetch(old.member_id, old.generation_id)
    group.fetch(old.member_id, 99)
    again = group.join("old", old.member_id, owned=[0, 1])  # it has to give up one
    kept = group.sync(old.member_id, again.generation_id)
    group.look()
    group.heartbeat(old.member_id, again.generation_id)
    again = group.join("old", old.member_id, owned=kept)  # it has
    assert group.sync(old.member_id, again.generation_id) == kept
    group.heartbeat(old.member_id, again.generation_id)
    new = group.beat(NEW, new.member_epoch, [])
    group.look()
    group.leave((old.member_id, None))
    group.beat(NEW, new.member_epoch, [1 - kept[0]])
    group.look()


def eager(group: Group) -> None:
    """A classic member that gives up everything before it joins again."""
    old = group.stable_classic()
    new = group.beat(NEW, 0)
    group.heartbeat(old.member_id, old.generation_id)
    again = group.join("old", old.member_id)
    group.sync(old.member_id, again.generation_id)
    group.heartbeat(old.member_id, again.generation_id)
    group.beat(NEW, new.member_epoch, [])
    group.look()


def downgrade(group: Group) -> None:
    old = group.stable_classic()
    new = group.beat(NEW, 0)
    again = group.join("old", old.member_id)
    group.sync(old.member_id, again.generation_id)
    group.beat(NEW, new.member_epoch, [])
    group.beat(NEW, -1)
    group.look()
    group.heartbeat(old.member_id, again.generation_id)
    group.beat(NEW, new.member_epoch, [])  # it is gone, and the group is another one
    third = group.join("old", old.member_id)
    group.sync(old.member_id, third.generation_id, {old.member_id: [0, 1]})
    group.heartbeat(old.member_id, third.generation_id)
    group.look()
    group.beat(OTHER, 0)  # and up again
    group.look()
    group.leave((OTHER, None))  # what an administrator removes counts as well
    group.look()
    group.leave((old.member_id, None))
    group.look()


def replaced(group: Group) -> None:
    """A static member is restarted with the other protocol, and back."""
    old = group.stable_classic(instance="inst-1")
    new = group.beat(NEW, 0, instance="inst-1")
    group.look()
    group.heartbeat(old.member_id, old.generation_id, "inst-1")
    group.heartbeat(old.member_id, old.generation_id)
    group.beat(NEW, new.member_epoch, [0, 1], instance="inst-1")
    back = group.join("back", instance="inst-1")
    group.look()
    group.sync(back.member_id, back.generation_id, instance="inst-1")
    group.beat(NEW, new.member_epoch, [0, 1], instance="inst-1")
    group.heartbeat(back.member_id, back.generation_id, "inst-1")
    group.look()


def refused(group: Group) -> None:
    new = group.beat(NEW, 0)
    group.join("odd", protocols=["range"], member="made up by the client")
    odd = "made up by the client"
    generation = new.member_epoch + 1
    group.join("wrong", protocols=["roundrobin"])
    group.join("right", protocols=["roundrobin", "range"])
    group.join("nobody", member="nobody", instance="inst-9")
    group.sync(odd, generation, protocol_name="roundrobin")
    group.sync(odd, generation, protocol_type="connect")
    group.sync(odd, generation + 7)
    group.sync(NEW, generation)
    group.sync("nobody", generation)
    group.sync(odd, generation)
    group.heartbeat(NEW, generation)
    group.heartbeat("nobody", generation)
    group.heartbeat(odd, generation, "inst-9")
    group.leave(("nobody", None), (odd, "inst-9"), (odd, None))
    group.look()


def not_consumers(group: Group) -> None:
    """A classic group of another kind of members, and one whose members sent bytes that nobody can read."""
    wanted = [JoinGroupRequestProtocol("range", b"?")]
    for kind in ("connect", "consumer"):
        first = group.ask(JoinGroupRequest(group.id, 45_000, 60_000, "", None, kind, wanted), 3)
        group.sync(first.member_id, first.generation_id, protocol_type=kind)
        group.beat(NEW, 0)
        group.look()
        group.leave((first.member_id, None))
    group.beat(NEW, 0)
    group.look()


def while_rebalancing(group: Group) -> None:
    """The group is converted while its members join: they are sent back at once."""
    old = group.enter("old")  # and never syncs
    group.beat(NEW, 0)
    group.look()
    group.sync(old.member_id, old.generation_id)
    again = group.join("old", old.member_id)
    group.sync(old.member_id, again.generation_id)
    group.look()


def empty(group: Group) -> None:
    """Requests for an empty group of the other kind."""
    new = group.beat(NEW, 0)
    group.beat(NEW, -1)
    group.heartbeat(NEW, new.member_epoch)
    group.sync(NEW, new.member_epoch)
    group.leave((NEW, None))
    group.beat(OTHER, 0)
    group.beat(OTHER, -1)
    joined = group.enter("old")
    group.look()
    group.leave((joined.member_id, None))
    new = group.beat(THIRD, 0)
    group.look()
    group.beat(THIRD, -1)
    group.join("known", "made up")
    group.look()


SCENARIOS = [static_members, upgrade, eager, downgrade, replaced, refused, not_consumers, while_rebalancing, empty]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_groups_are_as_in_kafka(brokers, scenario):
    found = []
    for address in brokers:
        group = Group(address)
        time.sleep(0.7)  # Kafka's group coordinator hears of the topic a moment after everybody else
        scenario(group)
        group.world.close()
        found.append(group.seen)
    for number, (ours, kafkas) in enumerate(zip(*found, strict=True)):
        assert ours == kafkas, f"step {number}, after {found[1][:number]}"
    assert len(found[0]) > 5
