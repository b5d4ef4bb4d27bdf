"""ShareGroupHeartbeat (key 76), version 1: members of share groups join (epoch 0), live, and leave (-1) (KIP-932).

The broker assigns partitions, several members the same one where there are more members than partitions.

Version notes: 0 was early access in Kafka 4.0 and is gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH
from millstream.broker.groups.share import ShareHeartbeat
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: ShareGroupHeartbeatRequest, version: int
) -> ShareGroupHeartbeatResponse | asyncio.Future[ShareGroupHeartbeatResponse]:
    """Check the request's form, give it to the group."""
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return ShareGroupHeartbeatResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    names = request.subscribed_topic_names
    for name in names or ():
        if not connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
            return ShareGroupHeartbeatResponse(0, errors.TOPIC_AUTHORIZATION_FAILED)
    wrong = _wrong(request)
    if wrong is not None:
        return ShareGroupHeartbeatResponse(0, errors.INVALID_REQUEST, wrong)
    beat = ShareHeartbeat(
        request.member_id,
        request.member_epoch,
        request.rack_id,
        frozenset(names) if names is not None else None,
        connection.client_id,
        connection.host,
    )
    outcome = broker.groups.share.heartbeat(request.group_id, beat)
    if outcome.error:
        return ShareGroupHeartbeatResponse(0, outcome.error, outcome.message)
    assignment = None
    if outcome.assignment is not None:
        assignment = Assignment([TopicPartitions(t, sorted(indexes)) for t, indexes in outcome.assignment.items()])
    interval = 0
    if request.member_epoch != LEAVE_EPOCH:
        interval = broker.dynamic.of_group(request.group_id, "share.heartbeat.interval.ms")
    response = ShareGroupHeartbeatResponse(0, 0, None, outcome.member_id, outcome.epoch, interval, assignment)
    return broker.flusher.answer(
        broker.groups.directory.unanswered(request.group_id),
        response,
        lambda *_: ShareGroupHeartbeatResponse(0, errors.COORDINATOR_NOT_AVAILABLE, "the group could not be stored"),
    )


def _wrong(request: ShareGroupHeartbeatRequest) -> str | None:
    """What is wrong with a request's form (GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid)."""
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if request.member_epoch < LEAVE_EPOCH:
        return f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1."
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return None
