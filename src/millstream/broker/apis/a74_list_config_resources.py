"""ListConfigResources (key 74), versions 0-1: what has settings: topics, the broker, and groups that were given some.

Version notes: 0 lists client metrics only, 1 what it is asked for (KIP-1142).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

KNOWN = {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}


def handle(
    broker: Broker, connection: Connection, request: ListConfigResourcesRequest, version: int
) -> ListConfigResourcesResponse:
    """The resources of the types asked for (none: all; version 0: client metrics)."""
    if not connection.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER):
        return ListConfigResourcesResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, [])
    if version == 0:
        return ListConfigResourcesResponse(0, 0, [])
    types = set(request.resource_types) or KNOWN
    if not types <= KNOWN:
        return ListConfigResourcesResponse(0, errors.UNSUPPORTED_VERSION, [])
    found = []
    if TOPIC in types:
        found += [ConfigResource(name, TOPIC) for name in broker.log.topics]
    if BROKER in types:
        found.append(ConfigResource(str(broker.node_id), BROKER))
    if GROUP in types:
        found += [ConfigResource(group_id, GROUP) for group_id in broker.dynamic.groups]
    return ListConfigResourcesResponse(0, 0, found)
