"""Members of the classic protocol in a group of the new one: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, as functions.

While the consumers of a group are restarted one by one with the other protocol, both kinds are members at once (KIP-848's
online migration). The broker assigns to all of them; a classic member learns from its heartbeat that it has to join again,
says then what it has, and gets what it is to have with SyncGroup. Its generation is its member epoch.

Source: Kafka's GroupMetadataManager, classicGroup…ToConsumerGroup.
"""

from __future__ import annotations

import uuid

from millstream.broker.groups.classic_events import Join, Joined, Sync, Synced
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_members import UNRELEASED, UNREVOKED, ClassicMember, Member, Partitions
from millstream.broker.groups.subscription import read_subscription, write_assignment
from millstream.broker.refused import Refused
from millstream.protocol import errors
from millstream.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.protocol.wire import ProtocolError


def join(group: ConsumerGroup, request: Join, now: float) -> Joined:
    """JoinGroup: a classic member joins, or brings what it has; answered at once."""
    member_id = request.member_id or str(uuid.uuid4())
    try:
        return _join(group, request, member_id, now)
    except Refused as e:
        return Joined(None, e.code, "")


def _join(group: ConsumerGroup, request: Join, member_id: str, now: float) -> Joined:
    if len(group.members) >= group.max_size and member_id not in group.members:
        raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"The group {group.id} is full.")
    if not _accepts(group, request):
        raise Refused(errors.INCONSISTENT_GROUP_PROTOCOL, f"The protocols of member {member_id} do not fit.")
    if not request.member_id and request.instance_id is None and request.id_first:
        return Joined(None, errors.MEMBER_ID_REQUIRED, member_id)
    try:
        subscription = read_subscription(request.protocols[0][1])
    except ProtocolError as e:
        raise Refused(errors.UNKNOWN_SERVER_ERROR, f"The subscription of member {member_id} cannot be read: {e}") from e
    old_id = None if request.instance_id is None else group.static.get(request.instance_id)
    becomes_classic = False
    if old_id is not None and not request.member_id:
        becomes_classic = group.classic_without([old_id], len(group.members))
        member = group.replace(group.members[old_id], member_id)
    elif request.instance_id is not None and request.member_id:
        member = group.identify(member_id, request.instance_id)
    else:
        member = group.members.get(member_id) or group.add(member_id, request.instance_id)
    changed = _update(group, member, request, subscription)
    group.advance(member, changed, _owned(group, subscription), now, joining=old_id is None)
    member.deadline = now + request.session_seconds
    member.join_deadline, member.sync_deadline = None, now + request.rebalance_seconds
    if becomes_classic:
        group.leaving = frozenset()
    return Joined(None, 0, member_id, member.epoch, "consumer", request.protocols[0][0])


def sync(group: ConsumerGroup, request: Sync, now: float) -> Synced:
    """SyncGroup: a classic member gets what it is to have."""
    try:
        member, classic = _member(group, request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, "consumer") or request.protocol not in (None, classic.protocol):
            raise Refused(errors.INCONSISTENT_GROUP_PROTOCOL, f"The member has joined with {classic.protocol}.")
        if group.epoch > member.epoch and member.state != UNREVOKED:
            _call_back(member, now)
            raise Refused(errors.REBALANCE_IN_PROGRESS, "The member has to join again.")
        assignment = write_assignment(named(group, member.assigned), classic.protocols[0][1])
    except Refused as e:
        return Synced(None, e.code)
    member.sync_deadline = None
    member.deadline = now + classic.session_seconds
    return Synced(None, 0, assignment, request.protocol_type, request.protocol)


def heartbeat(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: float) -> int:
    """Heartbeat; the error code, which calls the member back when there is something to give up or to get."""
    try:
        member, classic = _member(group, member_id, instance_id, generation)
    except Refused as e:
        return e.code
    member.deadline = now + classic.session_seconds
    free = member.state == UNRELEASED and not group.owners.waiting(member, group.target.get(member_id, {}))
    if member.epoch < group.epoch or member.state == UNREVOKED or free:
        _call_back(member, now)
        return errors.REBALANCE_IN_PROGRESS
    return errors.NONE


def leave(group: ConsumerGroup, members: list[tuple[str, str | None]], now: float) -> list[int]:
    """LeaveGroup of members of either protocol (id and instance id; "" for whichever has the instance); their error codes."""
    codes: list[int] = []
    gone: dict[str, None] = {}
    for member_id, instance_id in members:
        if instance_id is not None and not member_id:  # an administrator removes a static member
            member_id = group.static.get(instance_id, "")
        try:
            gone[group.identify(member_id, instance_id).id] = None
            codes.append(errors.NONE)
        except Refused as e:
            codes.append(e.code)
    group.fence(list(gone), now)
    return codes


def named(group: ConsumerGroup, partitions: Partitions) -> dict[str, set[int]]:
    """Partitions by the names of their topics; those of topics that are gone are left out."""
    names = {topic_id: name for name, (topic_id, _) in group.resolve().items()}
    return {names[topic_id]: indexes for topic_id, indexes in partitions.items() if topic_id in names}


def _accepts(group: ConsumerGroup, request: Join) -> bool:
    """Whether all classic members know one of the protocols (ConsumerGroup.supportsClassicProtocols)."""
    known = [{name for name, _ in m.classic.protocols} for m in group.members.values() if m.classic is not None]
    fits = any(all(name in names for names in known) for name, _ in request.protocols)
    return request.protocol_type == "consumer" and fits


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Member, ClassicMember]:
    """The classic member that a request is from. Raises Refused."""
    member = group.identify(member_id, instance_id)
    if member.classic is None:
        raise Refused(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if generation != member.epoch:
        raise Refused(errors.ILLEGAL_GENERATION, f"The generation is {generation}, the member's epoch {member.epoch}.")
    return member, member.classic


def _update(group: ConsumerGroup, member: Member, request: Join, said: ConsumerProtocolSubscription) -> bool:
    """Take over what a member said of itself; whether the group needs another assignment for it."""
    before = member.topics
    member.topics = frozenset(said.topics)
    member.rack_id = said.rack_id or member.rack_id
    member.rebalance_seconds = request.rebalance_seconds
    member.client_id, member.client_host = request.client_id, request.client_host
    member.classic = ClassicMember(request.session_seconds, request.protocols)
    member.away, member.revoke_deadline = False, None
    group.changes.members.add(member.id)
    return member.topics != before


def _owned(group: ConsumerGroup, said: ConsumerProtocolSubscription) -> Partitions:
    existing = group.resolve()
    return {existing[each.topic][0]: set(each.partitions) for each in said.owned_partitions if each.topic in existing}


def _call_back(member: Member, now: float) -> None:
    """From now on a member has its rebalance timeout to join again."""
    if member.join_deadline is None:
        member.join_deadline = now + member.rebalance_seconds
