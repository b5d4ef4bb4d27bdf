"""DescribeConfigs (key 32), versions 1-4: settings of topics and of the broker, with their source and type.

Topics: every setting that Kafka has for topics; those without effect on one machine are listed too, so that tools work;
of a topic whose ``millstream.overload`` is not ``buffer`` the counters of loss and waiting, read-only.
Broker: the settings in effect, all read-only (they are given at start). Gaps: no broker loggers, no documentation
texts; client metrics and groups have no settings of their own.
"""

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.settings import KNOWN
from millstream.log.config import ENGINE, SETTINGS, TopicConfig
from millstream.protocol import errors
from millstream.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection
    from millstream.log import Topic

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
# The error without the right to see (or change) the settings of a resource, and the kind of resource that has the right.
_RIGHTS = {
    TOPIC: (errors.TOPIC_AUTHORIZATION_FAILED, Resource.TOPIC),
    GROUP: (errors.GROUP_AUTHORIZATION_FAILED, Resource.GROUP),
    BROKER: (errors.CLUSTER_AUTHORIZATION_FAILED, Resource.CLUSTER),
}
TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 1, 4, 5
TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}


def denied(connection: "Connection", operation: Operation, resource_type: int, name: str) -> int:
    """The error of a client that lacks the right to see (or change) a resource's settings; 0 when it has it."""
    code, kind = _RIGHTS.get(resource_type, _RIGHTS[BROKER])
    return 0 if connection.may(operation, kind, CLUSTER if kind == Resource.CLUSTER else name) else code


def source_of(broker: "Broker", config: TopicConfig, name: str) -> int:
    """Where a topic's setting comes from, in Kafka's numbers."""
    if name in config.overrides:
        return TOPIC_CONFIG
    return DEFAULT_CONFIG if config.is_default(name) else STATIC_BROKER_CONFIG


def handle(
    broker: "Broker", connection: "Connection", request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResponse:
    """One result per resource."""
    results = []
    for resource in request.resources:
        try:
            right = denied(connection, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
            if right:
                raise LookupError(right, "Authorization failed.")
            configs = _configs(broker, resource, request.include_synonyms)
        except LookupError as e:
            code, text = e.args
            results.append(DescribeConfigsResult(code, text, resource.resource_type, resource.resource_name, []))
            continue
        if resource.configuration_keys is not None:
            wanted = set(resource.configuration_keys)
            configs = [c for c in configs if c.name in wanted]
        results.append(DescribeConfigsResult(0, None, resource.resource_type, resource.resource_name, configs))
    return DescribeConfigsResponse(0, results)


def _configs(
    broker: "Broker", resource: DescribeConfigsResource, synonyms: bool
) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == TOPIC:
        topic = broker.log.topics.get(resource.resource_name)
        if topic is None:
            raise LookupError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name} does not exist")
        found = [_topic_setting(broker, topic.config, name, synonyms) for name in SETTINGS]
        return found + (_counters(topic) if topic.config.overload != "buffer" else [])
    if resource.resource_type == BROKER:
        if resource.resource_name not in ("", str(broker.node_id)):
            text = f"Unexpected broker id, expected {broker.node_id}, but received {resource.resource_name}"
            raise LookupError(errors.INVALID_REQUEST, text)
        return _broker_settings(broker) if resource.resource_name else []
    if resource.resource_type in (CLIENT_METRICS, GROUP):
        return []
    raise LookupError(errors.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _topic_setting(broker: "Broker", config: TopicConfig, name: str, synonyms: bool) -> DescribeConfigsResourceResult:
    setting = SETTINGS[name]
    others = []
    if synonyms:
        if name in config.overrides:
            others.append(DescribeConfigsSynonym(name, config.overrides[name], TOPIC_CONFIG))
        if setting.synonym is not None:
            if (given := broker.log_defaults.get(name)) is not None:
                others.append(DescribeConfigsSynonym(setting.synonym, given, STATIC_BROKER_CONFIG))
            others.append(DescribeConfigsSynonym(setting.synonym, setting.default, DEFAULT_CONFIG))
    return DescribeConfigsResourceResult(
        name, config.get(name), False, source_of(broker, config, name), False, others, TYPES[setting.kind], None
    )


def _counters(topic: "Topic") -> list[DescribeConfigsResourceResult]:
    """What a topic's overload policy has cost, as read-only settings: every client and tool can show those."""
    return [
        DescribeConfigsResourceResult(
            "millstream.overload." + name.replace("_", "."),
            str(value),
            True,
            DEFAULT_CONFIG,
            False,
            [],
            TYPES["long"],
            None,
        )
        for name, value in topic.overload.values().items()
    ]


def _broker_settings(broker: "Broker") -> list[DescribeConfigsResourceResult]:
    rows = [(name, broker.settings.values[name], known.kind) for name, known in KNOWN.items()]
    for name, setting in [(s.synonym or "", s) for s in SETTINGS.values() if s.synonym] + list(ENGINE.items()):
        rows.append((name, broker.settings.log_defaults.get(name, setting.default), setting.kind))
    given = {**broker.settings.given, "listeners": "", "advertised.listeners": "", "log.dirs": ""}
    rows = [row for row in rows if row[0] != "advertised.listeners"]
    bound = ",".join(f"{each.protocol}://{each.address}" for each in broker.listeners)
    told = ",".join(f"{each.protocol}://{each.host}:{each.port}" for each in broker.listeners)
    rows += [("listeners", bound, "list"), ("advertised.listeners", told, "list")]
    rows.append(("log.dirs", str(broker.log.folder.absolute()), "list"))
    return [
        DescribeConfigsResourceResult(
            name,
            None if kind == "password" else value,
            True,
            STATIC_BROKER_CONFIG if name in given else DEFAULT_CONFIG,
            kind == "password",
            [],
            TYPES[kind],
            None,
        )
        for name, value, kind in sorted(rows)
    ]
