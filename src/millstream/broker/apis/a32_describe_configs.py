"""DescribeConfigs (key 32), versions 1-4: settings of topics, of the broker and of groups, with their source and type.

Topics: every setting that Kafka has for topics; those without effect on one machine are listed too, so that tools work;
of a topic whose `millstream.overload` is not `buffer` the counters of loss and waiting, read-only.
Broker: the settings in effect, read-only where they can only be given at start; without a number what Kafka calls the
default of the cluster, of which only what was changed. Gaps: no broker loggers, no documentation texts; client metrics
have no settings.

Version notes: 1 tells sources and synonyms (KIP-226), 2 throttles after the answer (KIP-219), 3 tells types and
documentation (KIP-569), 4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC, check_node
from millstream.broker.dynamic import DEFAULT
from millstream.broker.dynamic import GROUP as GROUP_SETTINGS
from millstream.broker.refused import Refused
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.settings import DYNAMIC, KNOWN, TOPIC_SYNONYMS
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
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic

# The error without the right to see (or change) the settings of a resource, and the kind of resource that has the right.
_RIGHTS = {
    TOPIC: (errors.TOPIC_AUTHORIZATION_FAILED, Resource.TOPIC),
    GROUP: (errors.GROUP_AUTHORIZATION_FAILED, Resource.GROUP),
    BROKER: (errors.CLUSTER_AUTHORIZATION_FAILED, Resource.CLUSTER),
}
# Where a value is from, in Kafka's numbers (DescribeConfigsResponse.ConfigSource).
TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG = 1, 2, 3, 4, 5
GROUP_CONFIG = 8
TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "password": 9}


def denied(connection: Connection, operation: Operation, resource_type: int, name: str) -> int:
    """The error of a client that lacks the right to see (or change) a resource's settings; 0 when it has it."""
    code, kind = _RIGHTS.get(resource_type, _RIGHTS[BROKER])
    return 0 if connection.may(operation, kind, CLUSTER if kind == Resource.CLUSTER else name) else code


def source_of(broker: Broker, config: TopicConfig, name: str) -> int:
    """Where a topic's setting comes from, in Kafka's numbers."""
    return next((each.source for each in _of_topic(broker, config, name)), DEFAULT_CONFIG)


def handle(
    broker: Broker, connection: Connection, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResponse:
    """One result per resource."""
    results = []
    for resource in request.resources:
        try:
            right = denied(connection, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
            if right:
                raise Refused(right, "Authorization failed.")
            configs = _configs(broker, resource, request.include_synonyms)
        except Refused as e:
            results.append(DescribeConfigsResult(e.code, str(e), resource.resource_type, resource.resource_name, []))
            continue
        if resource.configuration_keys is not None:
            wanted = set(resource.configuration_keys)
            configs = [c for c in configs if c.name in wanted]
        results.append(DescribeConfigsResult(0, None, resource.resource_type, resource.resource_name, configs))
    return DescribeConfigsResponse(0, results)


def _configs(broker: Broker, resource: DescribeConfigsResource, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    if resource.resource_type == TOPIC:
        topic = broker.log.topics.get(resource.resource_name)
        if topic is None:
            raise Refused(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name} does not exist")
        found = [_topic_setting(broker, topic.config, name, synonyms) for name in SETTINGS]
        return found + (_counters(topic) if topic.config.overload != "buffer" else [])
    if resource.resource_type == BROKER:
        check_node(broker, resource.resource_name)
        return _broker_settings(broker, synonyms) if resource.resource_name else _cluster_defaults(broker, synonyms)
    if resource.resource_type == GROUP:
        if not resource.resource_name:
            raise Refused(errors.INVALID_REQUEST, "Group name must not be empty")
        return [_group_setting(broker, resource.resource_name, name, synonyms) for name in GROUP_SETTINGS]
    if resource.resource_type == CLIENT_METRICS:
        return []
    raise Refused(errors.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _topic_setting(broker: Broker, config: TopicConfig, name: str, synonyms: bool) -> DescribeConfigsResourceResult:
    setting = SETTINGS[name]
    others = _of_topic(broker, config, name)
    source = others[0].source if others else DEFAULT_CONFIG
    shown = others if synonyms else []
    return DescribeConfigsResourceResult(name, config.get(name), False, source, False, shown, TYPES[setting.kind], None)


def _of_topic(broker: Broker, config: TopicConfig, name: str) -> list[DescribeConfigsSynonym]:
    """All that a topic and the broker have been given for a topic's setting, what is in effect first."""
    found = [DescribeConfigsSynonym(name, config.overrides[name], TOPIC_CONFIG)] if name in config.overrides else []
    synonym = SETTINGS[name].synonym
    return found + _of_broker(broker, synonym) if synonym is not None else found


def _of_broker(broker: Broker, name: str) -> list[DescribeConfigsSynonym]:
    """All that the broker has been given for one of its settings, what is in effect first, the default last."""
    dynamic = broker.dynamic
    found = [
        DescribeConfigsSynonym(name, value, source)
        for value, source in (
            (dynamic.broker.get(dynamic.node, {}).get(name), DYNAMIC_BROKER_CONFIG),
            (dynamic.broker.get(DEFAULT, {}).get(name), DYNAMIC_DEFAULT_CONFIG),
            (broker.settings.static.get(name), STATIC_BROKER_CONFIG),
        )
        if value is not None
    ]
    return [*found, DescribeConfigsSynonym(name, broker.settings.default(name), DEFAULT_CONFIG)]


def _group_setting(broker: Broker, group_id: str, name: str, synonyms: bool) -> DescribeConfigsResourceResult:
    known = GROUP_SETTINGS[name]
    if known.own is not None:
        others = [DescribeConfigsSynonym(name, known.own.default, DEFAULT_CONFIG)]
    else:
        others = _of_broker(broker, known.synonym)
    if (given := broker.dynamic.groups.get(group_id, {}).get(name)) is not None:
        others.insert(0, DescribeConfigsSynonym(name, given, GROUP_CONFIG))
    value = broker.dynamic.text_of_group(group_id, name)
    return DescribeConfigsResourceResult(
        name, value, False, others[0].source, False, others if synonyms else [], TYPES[known.kind], None
    )


def _counters(topic: Topic) -> list[DescribeConfigsResourceResult]:
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


def _broker_settings(broker: Broker, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    bound = ",".join(f"{each.protocol}://{each.address}" for each in broker.listeners)
    told = ",".join(f"{each.protocol}://{each.host}:{each.port}" for each in broker.listeners)
    here = {"listeners": bound, "advertised.listeners": told, "log.dirs": str(broker.log.folder.absolute())}
    rows = [_here(name, value) for name, value in here.items()]
    names = (set(KNOWN) | set(TOPIC_SYNONYMS) | set(ENGINE)) - set(here)
    rows += [_broker_setting(broker, name, synonyms) for name in names]
    return sorted(rows, key=lambda row: row.name)


def _here(name: str, value: str) -> DescribeConfigsResourceResult:
    """Where the broker is, which is never at its default."""
    return DescribeConfigsResourceResult(name, value, True, STATIC_BROKER_CONFIG, False, [], TYPES["list"], None)


def _broker_setting(broker: Broker, name: str, synonyms: bool) -> DescribeConfigsResourceResult:
    kind = broker.settings.kind(name)
    others = _of_broker(broker, name)
    secret = kind == "password"
    return DescribeConfigsResourceResult(
        name,
        None if secret else broker.settings.value(name),
        name not in DYNAMIC,
        others[0].source,
        secret,
        others if synonyms and not secret else [],
        TYPES[kind],
        None,
    )


def _cluster_defaults(broker: Broker, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    """What was changed for all brokers."""
    return [
        DescribeConfigsResourceResult(
            name,
            value,
            False,
            DYNAMIC_DEFAULT_CONFIG,
            False,
            [DescribeConfigsSynonym(name, value, DYNAMIC_DEFAULT_CONFIG)] if synonyms else [],
            TYPES[broker.settings.kind(name)],
            None,
        )
        for name, value in broker.dynamic.broker.get(DEFAULT, {}).items()
    ]
