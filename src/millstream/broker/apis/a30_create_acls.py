"""CreateAcls (key 30), versions 1-3: add access control lists; one that is there already is no error.

Version notes: 1 has pattern types (KIP-290), 2 is flexible, 3 knows users as resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a29_describe_acls import NO_AUTHORIZER
from millstream.broker.security.acls import CLUSTER, Acl, Operation, Pattern, Permission, Resource
from millstream.broker.security.store import MAX_ACLS, StoreError
from millstream.protocol import errors
from millstream.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: CreateAclsRequest, version: int) -> CreateAclsResponse:
    """One result per entry."""
    refusal = None
    if broker.authorizer is None:
        refusal = AclCreationResult(errors.SECURITY_DISABLED, NO_AUTHORIZER)
    elif not connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER):
        refusal = AclCreationResult(errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    if refusal is not None:
        return CreateAclsResponse(0, [refusal for _ in request.creations])
    results = []
    acls = broker.access.acls
    present = sum(1 for _ in acls.all())
    for each in request.creations:
        acl = Acl(
            each.resource_type,
            each.resource_pattern_type,
            each.resource_name,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        wrong = _wrong(acl)
        if wrong is None and present + len(request.creations) > MAX_ACLS:
            wrong = f"there are {present} access control lists; at most {MAX_ACLS} are possible"
        if wrong is None:
            acls.add(acl)
            results.append(AclCreationResult(0, None))
        else:
            results.append(AclCreationResult(errors.INVALID_REQUEST, wrong))
    try:
        broker.access.save()
    except StoreError as e:
        results = [AclCreationResult(errors.KAFKA_STORAGE_ERROR, str(e)) for _ in request.creations]
    broker.access_changed()
    return CreateAclsResponse(0, results)


def _wrong(acl: Acl) -> str | None:
    """What Kafka finds wrong with an entry (AclApis, AclControlManager.validateNewAcl)."""
    if acl.resource not in list(Resource) or acl.resource == Resource.ANY:
        return f"Invalid resourceType {acl.resource}"
    if acl.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        return f"Invalid patternType {acl.pattern}"
    if acl.operation not in list(Operation) or acl.operation == Operation.ANY:
        return f"Invalid operation {acl.operation}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission}"
    if not acl.name:
        return "Resource name should not be empty"
    if acl.resource == Resource.CLUSTER and acl.name != CLUSTER:
        return f"The only valid name for the CLUSTER resource is {CLUSTER}"
    if ":" not in acl.principal:
        return f"expected a string in format principalType:principalName but got {acl.principal}"
    return None
