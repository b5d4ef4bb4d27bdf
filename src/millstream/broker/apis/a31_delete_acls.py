"""DeleteAcls (key 31), versions 1-3: remove the access control lists that filters find, and say which they were.

Version notes: 1 has pattern types (KIP-290), 2 is flexible, 3 knows users as resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a29_describe_acls import NO_AUTHORIZER, known
from millstream.broker.security.acls import CLUSTER, Acl, Filter, Operation, Resource
from millstream.broker.security.store import StoreError
from millstream.protocol import errors
from millstream.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: DeleteAclsRequest, version: int) -> DeleteAclsResponse:
    """One result per filter."""
    refusal: tuple[int, str] | None = None
    if broker.authorizer is None:
        refusal = errors.SECURITY_DISABLED, NO_AUTHORIZER
    elif not connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER):
        refusal = errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    if refusal is not None:
        return DeleteAclsResponse(0, [DeleteAclsFilterResult(*refusal, []) for _ in request.filters])
    acls = broker.access.acls
    before = list(acls.all())
    results = [_find(before, wanted) for wanted in request.filters]
    for acl in {Acl(*_key(m)) for result in results for m in result.matching_acls}:
        acls.remove(acl)
    try:
        broker.access.save()
    except StoreError as e:
        results = [DeleteAclsFilterResult(errors.KAFKA_STORAGE_ERROR, str(e), []) for _ in request.filters]
    broker.access_changed()
    return DeleteAclsResponse(0, results)


def _find(acls: list[Acl], wanted: DeleteAclsFilter) -> DeleteAclsFilterResult:
    made = Filter(
        wanted.resource_type_filter,
        wanted.pattern_type_filter,
        wanted.resource_name_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )
    if not known(made):
        return DeleteAclsFilterResult(errors.INVALID_REQUEST, "Unknown patternFilter or entryFilter.", [])
    matching = [
        DeleteAclsMatchingAcl(0, None, a.resource, a.name, a.pattern, a.principal, a.host, a.operation, a.permission)
        for a in acls
        if made.matches(a)
    ]
    return DeleteAclsFilterResult(0, None, matching)


def _key(m: DeleteAclsMatchingAcl) -> tuple[int, int, str, str, str, int, int]:
    return m.resource_type, m.pattern_type, m.resource_name, m.principal, m.host, m.operation, m.permission_type
