"""ConsumerGroupHeartbeat (key 68), versions 0-1: the one request of the new group protocol (KIP-848).

Join (epoch 0), live, leave (-1; -2: a static member, for a while). From version 1 the client makes its member id and may
subscribe by a regular expression, matched over all topics. Assignors: uniform (default) and range.
A group whose members speak the classic protocol becomes one of the new protocol by the first member that sends this request,
as far as `group.consumer.migration.policy` allows. Gaps: racks are not considered (there is one broker); regular expressions
that could take long to match are refused (`broker/patterns.py`).

Version notes: 1 may subscribe by a regular expression, and has the client make its member id (KIP-1082).
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from millstream.broker.groups.assignors import ASSIGNORS
from millstream.broker.groups.consumer_members import JOIN_EPOCH, Heartbeat
from millstream.broker.patterns import PatternError, compile_pattern
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: ConsumerGroupHeartbeatRequest, version: int
) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
    """Check the request's form, give it to the group."""
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return ConsumerGroupHeartbeatResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    for name in request.subscribed_topic_names or ():
        if not connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
            return ConsumerGroupHeartbeatResponse(0, errors.TOPIC_AUTHORIZATION_FAILED)
    wrong = _wrong(request, version)
    if wrong is not None:
        return ConsumerGroupHeartbeatResponse(0, *wrong)
    member_id = request.member_id or str(uuid.uuid4())
    owned = None
    if request.topic_partitions is not None:
        owned = {t.topic_id: set(t.partitions) for t in request.topic_partitions if t.partitions}
    names = request.subscribed_topic_names
    beat = Heartbeat(
        member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms / 1000 if request.rebalance_timeout_ms >= 0 else None,
        frozenset(names) if names is not None else None,
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
        connection.client_id,
        connection.host,
    )
    outcome = broker.groups.consumer.heartbeat(request.group_id, beat)
    assignment = None
    if outcome.assignment is not None:
        assignment = Assignment(
            [
                ConsumerGroupHeartbeatResponseTopicPartitions(topic, sorted(indexes))
                for topic, indexes in outcome.assignment.items()
            ]
        )
    interval = 0
    if request.member_epoch >= 0:
        interval = broker.dynamic.of_group(request.group_id, "consumer.heartbeat.interval.ms")
    if outcome.error:
        return ConsumerGroupHeartbeatResponse(0, outcome.error, outcome.message)
    response = ConsumerGroupHeartbeatResponse(0, 0, None, outcome.member_id, outcome.epoch, interval, assignment)
    unsynced = broker.groups.directory.unanswered(request.group_id)
    return broker.flusher.answer(
        unsynced,
        response,
        lambda *_: ConsumerGroupHeartbeatResponse(0, errors.COORDINATOR_NOT_AVAILABLE, "the group could not be stored"),
    )


def _wrong(request: ConsumerGroupHeartbeatRequest, version: int) -> tuple[int, str] | None:
    """What is wrong with a request's form."""
    joining = request.member_epoch == JOIN_EPOCH
    if not request.group_id.strip():
        return errors.INVALID_REQUEST, "GroupId can't be empty."
    if not request.member_id and (version >= 1 or not joining):
        return errors.INVALID_REQUEST, "MemberId can't be empty."
    if request.instance_id is not None and not request.instance_id:
        return errors.INVALID_REQUEST, "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id:
        return errors.INVALID_REQUEST, "RackId can't be empty."
    if request.member_epoch < -2:
        return errors.INVALID_REQUEST, f"MemberEpoch is {request.member_epoch}."
    if joining:
        if request.rebalance_timeout_ms == -1:
            return errors.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."
        if request.topic_partitions is None or request.topic_partitions:
            return errors.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."
        if request.subscribed_topic_names is None and not request.subscribed_topic_regex:
            return errors.INVALID_REQUEST, "SubscribedTopicNames or SubscribedTopicRegex must be set in first request."
    if request.member_epoch == -2 and request.instance_id is None:
        return errors.INVALID_REQUEST, "InstanceId can't be null."
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        return errors.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.server_assignor} is not supported: {known} are."
    if request.subscribed_topic_regex:
        try:
            compile_pattern(request.subscribed_topic_regex)
        except PatternError as e:
            return errors.INVALID_REGULAR_EXPRESSION, str(e)
    return None
