"""DescribeClientQuotas (key 48), versions 0-1: none. Gap: quotas cannot be set yet (AlterClientQuotas is not served)."""

from typing import TYPE_CHECKING

from millstream.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: DescribeClientQuotasRequest, version: int
) -> DescribeClientQuotasResponse:
    """An empty list."""
    return DescribeClientQuotasResponse(0, 0, None, [])
