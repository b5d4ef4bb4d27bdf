"""CreateAcls (key 30), versions 1-3: SECURITY_DISABLED, as Kafka without an authorizer: there are no ACLs yet."""

from typing import TYPE_CHECKING

from millstream.broker.apis.a29_describe_acls import NO_AUTHORIZER
from millstream.protocol import errors
from millstream.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(broker: "Broker", connection: "Connection", request: CreateAclsRequest, version: int) -> CreateAclsResponse:
    """A refusal for each."""
    return CreateAclsResponse(
        0, [AclCreationResult(errors.SECURITY_DISABLED, NO_AUTHORIZER) for _ in request.creations]
    )
