"""DeleteAcls (key 31), versions 1-3: SECURITY_DISABLED, as Kafka without an authorizer: there are no ACLs yet."""

from typing import TYPE_CHECKING

from millstream.broker.apis.a29_describe_acls import NO_AUTHORIZER
from millstream.protocol import errors
from millstream.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(broker: "Broker", connection: "Connection", request: DeleteAclsRequest, version: int) -> DeleteAclsResponse:
    """A refusal for each."""
    refused = DeleteAclsFilterResult(errors.SECURITY_DISABLED, NO_AUTHORIZER, [])
    return DeleteAclsResponse(0, [refused for _ in request.filters])
