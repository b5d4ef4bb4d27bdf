"""Steps on groups: members of both protocols, offsets, and what administrators ask."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
from typing import Any

from hypothesis import strategies as st

from millstream.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
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
from millstream.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.differential.steps.making import (
    CLASSIC,
    CONSUMER,
    EPOCHS,
    GROUPS,
    PLACE,
    SLOTS,
    SOME,
    Kind,
    Made,
    Parameters,
)
from tests.differential.world import World

FIRST_CONSUMER, SLOT_COUNT = 2, 2
SUBSCRIPTION = b"\0\1\0\0\0\0\0\0\0\0"  # to nothing
STATIC_SINCE = {"join": 5, "sync": 3, "heartbeat": 3, "leave": 3, "commit": 7}


def member_of(world: World, p: dict[str, Any]) -> tuple[str, str, int]:
    """Group, member and generation (or epoch) that a step is for."""
    group, slot = world.name("g", p["group"]), p["slot"]
    member = {"mine": world.members.get((group, slot), ""), "none": "", "other": "nobody"}[p["who"]]
    if p["group"] >= FIRST_CONSUMER:
        return group, member, max(-1, world.epochs.get((group, slot), -1) + p["generation"])
    return group, member, world.generations.get(group, -1) + p["generation"]


def _instance(world: World, p: dict[str, Any], kind: str, version: int) -> str | None:
    return world.instance(p["group"], p["slot"]) if version >= STATIC_SINCE[kind] else None


# ---- the classic protocol


def join(world: World, p: dict[str, Any]) -> Made:
    group, member, _ = member_of(world, p)
    instance = _instance(world, p, "join", p["version"])
    if (group, p["slot"]) in world.joined and not member and not instance:
        member = world.members[group, p["slot"]]  # a forgotten member would be waited for until its session ends
    protocols = [JoinGroupRequestProtocol(name, SUBSCRIPTION) for name in p["protocols"]]
    request = JoinGroupRequest(group, p["session"], 60_000, member, instance, p["type"], protocols)

    def learn(answer: Any) -> None:
        if answer.error_code in (0, 79):
            world.members[group, p["slot"]] = answer.member_id
        if not answer.error_code:
            world.generations[group] = answer.generation_id
            world.joined.add((group, p["slot"]))
        elif answer.error_code == 25:
            world.joined.discard((group, p["slot"]))

    return Made(request, p["version"], learn, parked=f"join {group} {p['slot']}")


def sync(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = member_of(world, p)
    everybody = {slot: world.members.get((group, slot), "") for slot in range(SLOT_COUNT)}
    shares = [SyncGroupRequestAssignment(m, b"assigned %d" % slot) for slot, m in everybody.items() if m]
    instance = _instance(world, p, "sync", p["version"])
    request = SyncGroupRequest(group, generation, member, instance, assignments=shares)
    if p["version"] >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    return Made(request, p["version"], parked=f"sync {group} {p['slot']}")


def heartbeat(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = member_of(world, p)
    instance = _instance(world, p, "heartbeat", p["version"])
    return Made(HeartbeatRequest(group, generation, member, instance), p["version"])


def leave(world: World, p: dict[str, Any]) -> Made:
    group, member, _ = member_of(world, p)
    identities = [MemberIdentity(member, world.instance(p["group"], p["slot"]))]
    if p["both"]:
        identities.append(MemberIdentity(world.members.get((group, 1 - p["slot"]), ""), None))

    def learn(answer: Any) -> None:
        gone = [m.member_id for m in answer.members if not m.error_code] if p["version"] >= 3 else [member]
        for slot in range(SLOT_COUNT):
            if world.members.get((group, slot)) in gone or (not member and slot == p["slot"]):
                world.joined.discard((group, slot))

    if p["version"] < 3:
        return Made(LeaveGroupRequest(group, member), p["version"], learn)
    return Made(LeaveGroupRequest(group, members=identities), p["version"], learn)


# ---- the new protocol


def beat(world: World, p: dict[str, Any]) -> Any:
    world.let_groups_hear()
    group, slot = world.name("g", p["group"]), p["slot"]
    member, epoch = world.consumer(group, slot), world.epochs.get((group, slot), 0)
    told = world.told.get((group, slot), {})
    epoch = {"join": 0, "leave": -1, "away": -2, "newer": epoch + 1, "older": max(epoch - 1, 0)}.get(p["kind"], epoch)
    request = ConsumerGroupHeartbeatRequest(group, member, epoch, world.instance(p["group"], slot))
    names = [world.name("t", topic) for topic in p["topics"]]
    # As many votes for one assignor as for another are not asked for: Kafka then compares the first of a TimelineHashMap with
    # the first of a HashMap (GroupMetadataManager.hasPreferredServerAssignorChanged) and may raise the epoch with every heartbeat.
    others = {
        world.votes[group, other] for other in range(SLOT_COUNT) if other != slot and (group, other) in world.votes
    }
    vote = p["assignor"] if others <= {p["assignor"]} else None
    if epoch == 0:
        request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 60_000, names, []
        request.server_assignor = vote
    elif epoch > 0:
        if p["owned"] != "unchanged":
            owned = told if p["owned"] == "told" else {}
            request.topic_partitions = [ConsumerGroupHeartbeatRequestTopicPartitions(*item) for item in owned.items()]
        if p["change"]:
            request.subscribed_topic_names = names

    def learn(answer: Any) -> None:
        if answer.error_code:
            if answer.error_code in (25, 110):  # unknown, fenced
                world.epochs.pop((group, slot), None)
            return
        world.members[group, slot] = member
        world.epochs[group, slot] = max(answer.member_epoch, 0)
        if epoch == 0 and vote:
            world.votes[group, slot] = vote
        elif epoch == -1:
            world.votes.pop((group, slot), None)
        if answer.assignment is not None:
            world.told[group, slot] = {t.topic_id: list(t.partitions) for t in answer.assignment.topic_partitions}
        if answer.member_epoch <= 0:
            world.told.pop((group, slot), None)

    answer = world.ask(request, 1)
    if isinstance(answer, str):
        return answer
    learn(answer)
    shown = world.normal(answer)
    if answer.assignment is not None:  # which of its partitions a member keeps is chance: Kafka goes through a Set
        shown["assignment"] = {
            world.normal(t.topic_id, "topic_id"): len(t.partitions) for t in answer.assignment.topic_partitions
        }
    return shown


def wrong_beat(world: World, p: dict[str, Any]) -> Made:
    """What the broker refuses by the request's form."""
    group = world.name("g", p["group"])
    request = ConsumerGroupHeartbeatRequest(
        group, "somebody", 0, None, None, 60_000, [world.name("t", 0)], None, None, []
    )
    for field, value in p["fields"].items():
        setattr(request, field, value)
    return Made(request, 1)


def describe_consumers(world: World, p: dict[str, Any]) -> Any:
    answer = world.ask(ConsumerGroupDescribeRequest([world.name("g", p["group"])]), 1)
    if isinstance(answer, str):
        return answer
    shown = world.normal(answer)
    for member in (member for group in shown["groups"] for member in group["members"]):
        for kind in ("assignment", "target_assignment"):
            member[kind] = {t["topic_name"]: len(t["partitions"]) for t in member[kind]["topic_partitions"]}
    return shown


# ---- offsets


def commit(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = member_of(world, p)
    instance = _instance(world, p, "commit", p["version"])
    if p["outside"]:
        member, generation, instance = "", -1, None
    name = world.name("t", p["topic"])
    parts = [OffsetCommitRequestPartition(p["partition"], p["offset"], committed_metadata=p["metadata"])]
    if p["also"] or p["group"] >= FIRST_CONSUMER:  # which one of two a member has is chance
        parts.append(OffsetCommitRequestPartition(1 - min(max(p["partition"], 0), 1), 4, committed_metadata="also"))
    topic = OffsetCommitRequestTopic(name, partitions=parts)
    if p["version"] >= 10:
        topic = OffsetCommitRequestTopic("", world.topic_ids.get(name, bytes(15) + b"\1"), parts)
    return Made(OffsetCommitRequest(group, generation, member, instance, topics=[topic]), p["version"])


def committed(world: World, p: dict[str, Any]) -> Made:
    name, indexes = world.name("t", p["topic"]), [0, p["partition"]]
    group, member, epoch = member_of(world, p)
    if p["version"] < 8:
        asked = None if p["all"] and p["version"] >= 2 else [OffsetFetchRequestTopic(name, indexes)]
        stable = p["stable"] and p["version"] >= 7
        return Made(OffsetFetchRequest(group, asked, require_stable=stable), p["version"])
    wanted = None
    if not p["all"]:
        topic_id = world.topic_ids.get(name, bytes(15) + b"\1") if p["version"] >= 10 else bytes(16)
        wanted = [OffsetFetchRequestTopics("" if p["version"] >= 10 else name, topic_id, indexes)]
    request = OffsetFetchRequestGroup(group, None, -1, wanted)
    if p["member"] and p["version"] >= 9:
        request.member_id, request.member_epoch = member, epoch
    return Made(OffsetFetchRequest(groups=[request], require_stable=p["stable"]), p["version"])


def delete_offsets(world: World, p: dict[str, Any]) -> Made:
    topics = [OffsetDeleteRequestTopic(world.name("t", p["topic"]), [OffsetDeleteRequestPartition(p["partition"])])]
    if p["also"]:
        topics.append(
            OffsetDeleteRequestTopic(world.name("t", 0 if p["topic"] else 2), [OffsetDeleteRequestPartition(0)])
        )
    return Made(OffsetDeleteRequest(world.name("g", p["group"]), topics), 0)


# ---- administrators


def describe_group(world: World, p: dict[str, Any]) -> Made:
    return Made(DescribeGroupsRequest([world.name("g", p["group"])]), p["version"])


def list_groups(world: World, p: dict[str, Any]) -> Any:
    answer = world.ask(ListGroupsRequest(p["states"], p["types"]), 5)
    if isinstance(answer, str):
        return answer
    return answer.error_code, world.normal([g for g in answer.groups if g.group_id.endswith(world.run)])


def delete_group(world: World, p: dict[str, Any]) -> Made:
    return Made(DeleteGroupsRequest([world.name("g", p["group"])]), 2)


WHO: Parameters = {"slot": SLOTS, "who": st.sampled_from(["mine"] * 6 + ["none", "other"]), "generation": EPOCHS}
MEMBER: Parameters = {"group": CLASSIC, **WHO}
STEPS = {
    "join": Kind(6, join, {
        **MEMBER, "session": st.sampled_from([120_000] * 8 + [1, 99_999_999]), "type": st.sampled_from(["consumer"] * 8 + ["other", ""]),
        "protocols": st.sampled_from([["range"]] * 8 + [["range", "roundrobin"], ["x"], []]), "version": st.sampled_from([1, 3, 4, 5, 5, 5, 7, 9]),
    }),
    "sync": Kind(5, sync, {**MEMBER, "version": st.sampled_from([0, 3, 3, 3, 5])}),
    "heartbeat": Kind(1, heartbeat, {**MEMBER, "version": st.sampled_from([0, 3, 4])}),
    "leave": Kind(2, leave, {**MEMBER, "both": SOME, "version": st.sampled_from([0, 3, 4, 5])}),
    "beat": Kind(7, beat, {
        "group": CONSUMER, "slot": SLOTS, "kind": st.sampled_from(["next"] * 12 + ["join", "join", "leave", "away", "newer", "older"]),
        "topics": st.sampled_from([[0], [0], [0, 1], [1], []]), "owned": st.sampled_from(["told", "told", "told", "unchanged", "empty"]),
        "change": st.sampled_from([False] * 4 + [True]), "assignor": st.sampled_from([None, None, "uniform", "range"]),
    }),
    "wrong beat": Kind(1, wrong_beat, {
        "group": GROUPS, "fields": st.sampled_from([
            {"group_id": ""}, {"group_id": "  "}, {"member_id": ""}, {"instance_id": ""}, {"rack_id": ""}, {"member_epoch": -3},
            {"rebalance_timeout_ms": -1}, {"topic_partitions": None}, {"subscribed_topic_names": None}, {"server_assignor": "best"},
            {"member_epoch": -2}, {"member_epoch": 3}, {"member_epoch": -1}, {"subscribed_topic_regex": "("},
        ]),
    }),
    "describe consumers": Kind(1, describe_consumers, {"group": GROUPS}),
    "commit": Kind(5, commit, {
        **PLACE, **WHO, "group": GROUPS, "outside": SOME, "offset": st.sampled_from([0, 5, -1]), "also": st.sampled_from([False, False, True]),
        "metadata": st.sampled_from([None, "", "m", "x" * 4097]), "version": st.sampled_from([2, 5, 8, 8, 9, 9, 10]),
    }),
    "committed": Kind(3, committed, {
        **PLACE, **WHO, "group": GROUPS, "all": SOME, "stable": SOME, "member": SOME, "version": st.sampled_from([1, 2, 5, 7, 8, 9, 10]),
    }),
    "delete offsets": Kind(2, delete_offsets, {**PLACE, "group": GROUPS, "also": SOME}),
    "describe group": Kind(1, describe_group, {"group": GROUPS, "version": st.sampled_from([0, 3, 4, 5, 6])}),
    "list groups": Kind(1, list_groups, {
        "states": st.sampled_from([[], [], ["Stable"], ["empty", "dead"]]), "types": st.sampled_from([[], [], ["classic"], ["consumer"], ["CLASSIC", "other"]]),
    }),
    "delete group": Kind(1, delete_group, {"group": GROUPS}),
}  # fmt: skip
