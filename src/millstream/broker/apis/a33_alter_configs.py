"""AlterConfigs (key 33), versions 0-2: replace all of a topic's own settings (deprecated in favour of key 44).

Gaps: the broker's settings are given at start and cannot be changed while it runs.
"""

from typing import TYPE_CHECKING

from millstream.broker.apis.a32_describe_configs import TOPIC, denied
from millstream.broker.security.acls import Operation
from millstream.log import LogError
from millstream.log.config import TopicConfig
from millstream.protocol import errors
from millstream.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: AlterConfigsRequest, version: int
) -> AlterConfigsResponse:
    """One result per resource."""
    responses = []
    for resource in request.resources:
        code = denied(connection, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
        text: str | None = "Authorization failed."
        if not code:
            code, text = _alter(broker, resource, request.validate_only)
        responses.append(AlterConfigsResourceResponse(code, text, resource.resource_type, resource.resource_name))
    return AlterConfigsResponse(0, responses)


def _alter(broker: "Broker", resource: AlterConfigsResource, validate_only: bool) -> tuple[int, str | None]:
    if resource.resource_type != TOPIC:
        return (
            errors.INVALID_REQUEST,
            "Only a topic's settings can be changed while the broker runs; its own are given at its start, with --set.",
        )
    topic = broker.log.topics.get(resource.resource_name)
    # As in Kafka, whether the settings are right is looked at before whether the topic is there
    # (ConfigurationControlManager.validateAlterConfig).
    changes: dict[str, str | None] = dict.fromkeys(topic.config.overrides if topic is not None else ())
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return errors.INVALID_REQUEST, "Error due to duplicate config keys"
    for config in resource.configs:
        if config.value is None:
            return errors.INVALID_REQUEST, f"Null value not supported for : {config.name}"
        changes[config.name] = config.value
    try:
        TopicConfig({k: v for k, v in changes.items() if v is not None}, broker.log_defaults)
        if topic is None:
            return errors.UNKNOWN_TOPIC_OR_PARTITION, "The topic does not exist."
        if not validate_only:
            broker.log.configure(topic.name, changes)
    except LogError as e:
        return e.code, str(e)
    return 0, None
