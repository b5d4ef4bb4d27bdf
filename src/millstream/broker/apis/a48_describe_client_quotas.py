"""DescribeClientQuotas (key 48), versions 0-1: the quotas of users, client ids and IP addresses that a filter finds.

Version notes: 1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.quotas import CLIENT_ID, IP, USER
from millstream.protocol import errors
from millstream.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

EXACT, DEFAULT, SPECIFIED = range(3)


def handle(
    broker: Broker, connection: Connection, request: DescribeClientQuotasRequest, version: int
) -> DescribeClientQuotasResponse:
    """The entities with their limits."""
    if not connection.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, CLUSTER):
        return DescribeClientQuotasResponse(
            0, errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.", None
        )
    wrong = _wrong(request.components)
    if wrong is not None:
        return DescribeClientQuotasResponse(0, *wrong, None)
    entries = []
    for entity, limits in broker.access.quotas.items():
        parts = dict(entity)
        if request.strict and len(parts) != len(request.components):
            continue
        if all(_matches(component, parts) for component in request.components):
            entries.append(
                EntryData(
                    [EntityData(kind, name) for kind, name in entity],
                    [ValueData(key, value) for key, value in limits.items()],
                )
            )
    return DescribeClientQuotasResponse(0, 0, None, entries)


def _wrong(components: list[ComponentData]) -> tuple[int, str] | None:
    """What is wrong with a filter (ClientQuotasImage.describe)."""
    seen = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            return errors.INVALID_REQUEST, "Invalid empty entity type."
        if kind in seen:
            return errors.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
        seen.add(kind)
        if kind not in (USER, CLIENT_ID, IP):
            return errors.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}"
        if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            return errors.INVALID_REQUEST, f"Unknown match type {component.match_type}"
        if (component.match_type == EXACT) != (component.match is not None):
            return errors.INVALID_REQUEST, "A match string belongs to MATCH_TYPE_EXACT, and only to it."
    if IP in seen and len(seen) > 1:
        return errors.INVALID_REQUEST, "IP filter component should not be used with user or clientId filter component."
    return None


def _matches(component: ComponentData, parts: dict[str, str | None]) -> bool:
    kind = component.entity_type
    if kind not in parts:
        return False
    return component.match_type == SPECIFIED or parts[kind] == component.match
