"""AlterUserScramCredentials (key 51), version 0: set or remove users' SCRAM keys (kafka-configs.sh --entity-type users).

The client sends a salted password, not the password; only the keys made of it are kept. Connections that are
authenticated already stay, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security import users
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.store import StoreError
from millstream.protocol import errors
from millstream.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: AlterUserScramCredentialsRequest, version: int
) -> AlterUserScramCredentialsResponse:
    """One result per user."""
    names = [deletion.name for deletion in request.deletions] + [upsertion.name for upsertion in request.upsertions]
    results: dict[str, users.Result]
    if not connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER):
        results = dict.fromkeys(names, (errors.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."))
    else:
        results = users.alter(broker.access, request)
        if not all(code for code, _ in results.values()):
            try:
                broker.access.save()
            except StoreError as e:
                results = {name: (errors.KAFKA_STORAGE_ERROR, str(e)) for name in results}
    return AlterUserScramCredentialsResponse(
        0, [AlterUserScramCredentialsResult(name, code, text) for name, (code, text) in results.items()]
    )
