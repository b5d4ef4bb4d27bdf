"""IncrementalAlterConfigs (key 44), versions 0-1: set, delete, append to and subtract from a topic's settings.

Gaps: the broker's settings are given at start and cannot be changed while it runs; client metrics are not collected.
"""

from typing import TYPE_CHECKING

from millstream.broker.apis.a32_describe_configs import TOPIC, denied
from millstream.broker.security.acls import Operation
from millstream.log import LogError
from millstream.log.config import SETTINGS, TopicConfig
from millstream.protocol import errors
from millstream.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection

SET, DELETE, APPEND, SUBTRACT = range(4)


def handle(
    broker: "Broker", connection: "Connection", request: IncrementalAlterConfigsRequest, version: int
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


def _alter(broker: "Broker", resource: AlterConfigsResource, validate_only: bool) -> tuple[int, str | None]:
    if resource.resource_type != TOPIC:
        return (
            errors.INVALID_REQUEST,
            "Only a topic's settings can be changed while the broker runs; its own are given at its start, with --set.",
        )
    topic = broker.log.topics.get(resource.resource_name)
    # As in Kafka, whether the settings are right is looked at before whether the topic is there
    # (ConfigurationControlManager.validateAlterConfig).
    config_now = topic.config if topic is not None else TopicConfig({}, broker.log_defaults)
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return errors.INVALID_REQUEST, "Error due to duplicate config keys"
    changes: dict[str, str | None] = {}
    for config in resource.configs:
        name, operation = config.name, config.config_operation
        if operation == DELETE:
            changes[name] = None
        elif operation not in (SET, APPEND, SUBTRACT):
            return errors.INVALID_REQUEST, f"Unknown operation {operation} on {name}."
        elif config.value is None:
            return errors.INVALID_REQUEST, f"Null value not supported for : {name}"
        elif operation == SET:
            changes[name] = config.value
        else:
            setting = SETTINGS.get(name)
            if setting is None or setting.kind != "list":
                return errors.INVALID_CONFIG, f"Config value append is not allowed for config key: {name}"
            value = config_now.get(name)
            present = [part.strip() for part in value.split(",") if part.strip()]
            given = [part.strip() for part in config.value.split(",") if part.strip()]
            kept = present + [p for p in given if p not in present] if operation == APPEND else None
            changes[name] = ",".join([p for p in present if p not in given] if kept is None else kept)
    try:
        after = {**config_now.overrides, **changes}
        TopicConfig({k: v for k, v in after.items() if v is not None}, broker.log_defaults)
        if topic is None:
            return errors.UNKNOWN_TOPIC_OR_PARTITION, "The topic does not exist."
        if not validate_only:
            broker.log.configure(topic.name, changes)
    except LogError as e:
        return e.code, str(e)
    return 0, None
