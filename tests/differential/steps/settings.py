"""Steps on the settings of groups, and on the broker's, which are only checked: other sequences use the same broker."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
import time
from typing import Any

from hypothesis import strategies as st

from millstream.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.differential.steps.making import GROUPS, SOME, Kind, Made
from tests.differential.world import SETTLE_SECONDS, World

BROKER, GROUP = 4, 32
OF_GROUP = 8  # the source of what a group was given itself
NAMES = ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
GROUP_SETTINGS = st.sampled_from(
    [
        *((NAMES[0], value) for value in ("50000", "45000", "60001", "1", "x", None)),
        *((NAMES[1], value) for value in ("7000", "15000", "15001", "-1")), ("no.such.setting", "1"), ("retention.ms", "1"),
    ]
)  # fmt: skip
BROKER_SETTINGS = st.sampled_from(
    [
        ("log.retention.ms", "86400000"), ("log.retention.ms", "x"), ("log.retention.ms", "-7"), ("log.cleanup.policy", "compact"),
        ("log.cleanup.policy", "both"), ("message.max.bytes", "2000"), ("max.connections", "50"), ("max.connections", "-1"),
        ("num.partitions", "3"), ("node.id", "3"), ("log.segment.bytes", "10"), ("log.retention.hours", "1"), ("max.connections.per.ip", None),
    ]
)  # fmt: skip
OPERATIONS = st.sampled_from([0, 0, 0, 0, 1, 2, 3])


def _request(kind: int, name: str, p: dict[str, Any]) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(name, op, value if op != 1 else None) for (name, value), op in p["changes"]]
    return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, configs)], p["only"])


def configure_group(world: World, p: dict[str, Any]) -> Made:
    group = world.name("g", p["group"]) if p["group"] >= 0 else ""

    def learn(answer: Any) -> None:
        if answer.responses[0].error_code or p["only"]:
            return
        expected = world.settings.setdefault(group, {})
        for (name, value), op in p["changes"]:
            expected.pop(name, None)
            if op == 0:
                expected[name] = value
        deadline = time.monotonic() + SETTLE_SECONDS
        while {n: v for n, (v, source, *_) in _shown(world, group)[1].items() if source == OF_GROUP} != expected:
            assert time.monotonic() < deadline, f"{world.address}: the settings of {group} did not become {expected}"
            time.sleep(0.02)

    return Made(_request(GROUP, group, p), 1, learn)


def _shown(world: World, group: str) -> Any:
    [found] = world.wire.ask(DescribeConfigsRequest([DescribeConfigsResource(GROUP, group, NAMES)]), 4).results
    shown = {c.name: (c.value, c.config_source, c.read_only, c.is_sensitive, c.config_type) for c in found.configs}
    return found.error_code, shown


def group_settings(world: World, p: dict[str, Any]) -> Any:
    return _shown(world, world.name("g", p["group"]) if p["group"] >= 0 else "")


def configure_broker(world: World, p: dict[str, Any]) -> Made:
    return Made(_request(BROKER, p["broker"], {**p, "only": True}), 1)


STEPS = {
    "configure group": Kind(1, configure_group, {
        "group": st.one_of(GROUPS, st.just(-1)), "only": SOME,
        "changes": st.lists(st.tuples(GROUP_SETTINGS, OPERATIONS), min_size=1, max_size=2),
    }),
    "group settings": Kind(1, group_settings, {"group": st.one_of(GROUPS, st.just(-1))}),
    "configure broker": Kind(1, configure_broker, {
        "broker": st.sampled_from(["0", "", "7", "x"]), "changes": st.lists(st.tuples(BROKER_SETTINGS, OPERATIONS), min_size=1, max_size=2),
    }),
}  # fmt: skip
