"""DescribeUserScramCredentials (key 50), version 0: which users have which SCRAM keys; never the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.users import NUMBERS
from millstream.protocol import errors
from millstream.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: DescribeUserScramCredentialsRequest, version: int
) -> DescribeUserScramCredentialsResponse:
    """One result per user asked for; none asked for: all."""
    if not connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER):
        return DescribeUserScramCredentialsResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, None)
    names = [user.name for user in request.users or ()]
    asked = list(dict.fromkeys(names)) or sorted(broker.access.users)
    return DescribeUserScramCredentialsResponse(
        0, 0, None, [_describe(broker, name, names.count(name) > 1) for name in asked]
    )


def _describe(broker: Broker, name: str, twice: bool) -> DescribeUserScramCredentialsResult:
    if twice:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribeUserScramCredentialsResult(name, errors.DUPLICATE_RESOURCE, text)
    found = broker.access.users.get(name)
    if not found:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        return DescribeUserScramCredentialsResult(name, errors.RESOURCE_NOT_FOUND, text)
    kept = [CredentialInfo(NUMBERS[mechanism], known.iterations) for mechanism, known in found.items()]
    return DescribeUserScramCredentialsResult(name, 0, None, kept)
