"""AlterClientQuotas (key 49), versions 0-1: set or remove limits of users, client ids and IP addresses.

producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; of an IP address
connection_creation_rate. Gap: names of hosts instead of addresses are refused with INVALID_REQUEST.

Version notes: 1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.quotas import IP, IP_KEYS, KEYS, wrong_entity, wrong_limit
from millstream.broker.security.store import MAX_QUOTAS, Entity, StoreError
from millstream.protocol import errors
from millstream.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

Changed = dict[Entity, dict[str, float]]


def handle(
    broker: Broker, connection: Connection, request: AlterClientQuotasRequest, version: int
) -> AlterClientQuotasResponse:
    """One result per entity."""
    allowed = connection.may(Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER)
    store = broker.access
    changed: Changed = {}
    entries = []
    seen: set[Entity] = set()
    for entry in request.entries:
        entity = _entity(entry)
        code, text = errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
        if allowed:
            wrong = _wrong(entry)
            if wrong is None and entity in seen:
                wrong = f"Ignoring duplicate entity {dict(entity)}"
            if wrong is None and len(store.quotas.keys() | changed.keys()) >= MAX_QUOTAS and entity not in store.quotas:
                wrong = f"There are {MAX_QUOTAS} quotas already."
            code, text = (errors.INVALID_REQUEST, wrong) if wrong is not None else (0, "")
        seen.add(entity)
        if not code:
            limits = dict(store.quotas.get(entity, {}))
            for op in entry.ops:
                if op.remove:
                    limits.pop(op.key, None)
                else:
                    limits[op.key] = op.value
            changed[entity] = limits
        parts = [AlterClientQuotasResponseEntityData(part.entity_type, part.entity_name) for part in entry.entity]
        entries.append(AlterClientQuotasResponseEntryData(code, text or None, parts))
    if changed and not request.validate_only:
        store.quotas.update(changed)
        for entity in [e for e, limits in store.quotas.items() if not limits]:
            del store.quotas[entity]
        try:
            store.save()
        except StoreError as e:
            for made in entries:
                made.error_code, made.error_message = errors.KAFKA_STORAGE_ERROR, str(e)
        broker.access_changed()
    return AlterClientQuotasResponse(0, entries)


def _entity(entry: AlterClientQuotasRequestEntryData) -> Entity:
    return tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=lambda part: part[0]))


def _wrong(entry: AlterClientQuotasRequestEntryData) -> str | None:
    wrong = wrong_entity([(part.entity_type, part.entity_name) for part in entry.entity])
    if wrong is not None:
        return wrong
    known = IP_KEYS if entry.entity[0].entity_type == IP else KEYS
    keys = [op.key for op in entry.ops]
    for op in entry.ops:
        if keys.count(op.key) > 1:
            return f"Duplicate quota key {op.key} not updating quota for this entity"
        if not op.remove and (wrong := wrong_limit(known, op.key, op.value)) is not None:
            return wrong
    return None
