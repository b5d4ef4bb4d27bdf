"""AlterConfigs (key 33), versions 0-2: replace all that a topic, the broker or a group has been given (deprecated: key 44).

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a32_describe_configs import denied
from millstream.broker.configs import find
from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation
from millstream.protocol import errors
from millstream.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: AlterConfigsRequest, version: int) -> AlterConfigsResponse:
    """One result per resource."""
    responses = []
    for resource in request.resources:
        code = denied(connection, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        text: str | None = "Authorization failed."
        if not code:
            code, text = _alter(broker, resource, request.validate_only)
        responses.append(AlterConfigsResourceResponse(code, text, resource.resource_type, resource.resource_name))
    return AlterConfigsResponse(0, responses)


def _alter(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> tuple[int, str | None]:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return errors.INVALID_REQUEST, "Error due to duplicate config keys"
    for config in resource.configs:
        if config.value is None:
            return errors.INVALID_REQUEST, f"Null value not supported for : {config.name}"
    try:
        settings = find(broker, resource.resource_type, resource.resource_name)
        changes: dict[str, str | None] = dict.fromkeys(settings.overrides)
        changes.update((config.name, config.value) for config in resource.configs)
        settings.change(changes, only_check=validate_only)
    except Refused as e:
        return e.code, str(e)
    return 0, None
