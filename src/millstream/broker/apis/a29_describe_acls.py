"""DescribeAcls (key 29), versions 1-3: SECURITY_DISABLED, as Kafka without an authorizer: there are no ACLs yet."""

from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection

NO_AUTHORIZER = "No Authorizer is configured on the broker"


def handle(
    broker: "Broker", connection: "Connection", request: DescribeAclsRequest, version: int
) -> DescribeAclsResponse:
    """The refusal."""
    return DescribeAclsResponse(0, errors.SECURITY_DISABLED, NO_AUTHORIZER)
