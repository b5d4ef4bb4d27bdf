"""IncrementalAlterConfigs (key 44), versions 0-1: set, delete, append to and subtract from settings.

Of topics, of the broker (those that Kafka lets change while it runs) and of groups. Gaps: log levels; client metrics are
not collected.

Version notes: 1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a32_describe_configs import denied
from millstream.broker.configs import Configurable, find
from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation
from millstream.protocol import errors
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

SET, DELETE, APPEND, SUBTRACT = range(4)


def handle(
    broker: Broker, connection: Connection, request: IncrementalAlterConfigsRequest, version: int
) -> IncrementalAlterConfigsResponse:
    """One result per resource."""
    responses = []
    for resource in request.resources:
        code = denied(connection, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        text: str | None = "Authorization failed."
        if not code:
            code, text = _alter(broker, resource, request.validate_only)
        responses.append(AlterConfigsResourceResponse(code, text, resource.resource_type, resource.resource_name))
    return IncrementalAlterConfigsResponse(0, responses)


def _alter(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> tuple[int, str | None]:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return errors.INVALID_REQUEST, "Error due to duplicate config keys"
    try:
        settings = find(broker, resource.resource_type, resource.resource_name)
        changes = {config.name: _changed(settings, config) for config in resource.configs}
        settings.change(changes, only_check=validate_only)
    except Refused as e:
        return e.code, str(e)
    return 0, None


def _changed(settings: Configurable, config: AlterableConfig) -> str | None:
    """A setting's new value, None to remove it. Raises Refused."""
    name, operation = config.name, config.config_operation
    if operation == DELETE:
        return None
    if operation not in (SET, APPEND, SUBTRACT):
        raise Refused(errors.INVALID_REQUEST, f"Unknown operation {operation} on {name}.")
    if config.value is None:
        raise Refused(errors.INVALID_REQUEST, f"Null value not supported for : {name}")
    if operation == SET:
        return config.value
    if not settings.is_list(name):
        raise Refused(errors.INVALID_CONFIG, f"Config value append is not allowed for config key: {name}")
    present = [part.strip() for part in settings.value(name).split(",") if part.strip()]
    given = [part.strip() for part in config.value.split(",") if part.strip()]
    if operation == APPEND:
        return ",".join(present + [part for part in given if part not in present])
    return ",".join(part for part in present if part not in given)
