"""DescribeAcls (key 29), versions 1-3: the access control lists that a filter finds; see `security/acls.py`.

Without an authorizer (authorizer.class.name) SECURITY_DISABLED, as in Kafka.

Version notes: 1 has pattern types (KIP-290), 2 is flexible, 3 knows users as resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Acl, Filter, Operation, Pattern, Permission, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

NO_AUTHORIZER = "No Authorizer is configured."


def handle(broker: Broker, connection: Connection, request: DescribeAclsRequest, version: int) -> DescribeAclsResponse:
    """The entries, by resource pattern."""
    if broker.authorizer is None:
        return DescribeAclsResponse(0, errors.SECURITY_DISABLED, NO_AUTHORIZER)
    if not connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER):
        return DescribeAclsResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
    wanted = Filter(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if not known(wanted):
        return DescribeAclsResponse(
            0, errors.INVALID_REQUEST, "The AclBindingFilter must not contain UNKNOWN elements."
        )
    found: dict[tuple[int, str, int], list[Acl]] = {}
    for acl in broker.access.acls.all():
        if wanted.matches(acl):
            found.setdefault((acl.resource, acl.name, acl.pattern), []).append(acl)
    resources = [
        DescribeAclsResource(*pattern, [AclDescription(a.principal, a.host, a.operation, a.permission) for a in acls])
        for pattern, acls in found.items()
    ]
    return DescribeAclsResponse(0, 0, None, resources)


def known(wanted: Filter) -> bool:
    """Whether a filter's numbers mean something."""
    return (
        wanted.resource in list(Resource)
        and wanted.pattern in list(Pattern)
        and wanted.operation in list(Operation)
        and wanted.permission in list(Permission)
    )
