"""Every codec with everything that may be wrong inside, into topics of every kind: the same answers and records."""

import pytest

from tests.differential.steps.messages import INSIDE
from tests.differential.test_differential import compare
from tests.differential.world import NOW

pytestmark = [pytest.mark.system, pytest.mark.proof]
PRODUCE = {
    "topic": 1,
    "partition": 0,
    "producer": 0,
    "seed": 3,
    "acks": -1,
    "version": 11,
    "inside": "good",
    "codec": 0,
}
FETCH = {"topic": 1, "partition": 0, "offset": 0, "isolation": 0, "size": 10_000_000, "leader": -1, "version": 12}
OFFSETS = {"topic": 1, "partition": 0, "leader": -1, "isolation": 0, "version": 7}
# What claims log append time and is packed again gets its largest timestamp for all records from Kafka; ours keeps each.
UNPACKED = ("garbage", "no payload", "cut", "half")
KINDS = {
    "plain": [],
    "compacted": [("cleanup.policy", "compact")],
    "stamped": [("message.timestamp.type", "LogAppendTime")],
    "bounded": [("message.timestamp.before.max.ms", "70000")],
    **{
        f"packed with {name}": [("compression.type", name)]
        for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd")
    },
    "packed hard": [
        ("compression.type", "gzip"),
        ("compression.gzip.level", "9"),
        ("cleanup.policy", "compact,delete"),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_inside(brokers, kind):
    steps = [("create", {"topic": 1, "count": 1, "factor": 1, "settings": KINDS[kind], "only": False})]
    # Where the log gives the time, it is chance which append is the newest.
    times = (-1,) if kind == "stamped" else (-1, -3)
    for codec in range(5):
        for inside in INSIDE:
            if (inside in UNPACKED and not codec) or (inside == "stamped" and "packed" in kind):
                continue
            steps.append(("produce", {**PRODUCE, "batch": "packed", "codec": codec, "inside": inside}))
            steps += [("offsets", {**OFFSETS, "time": time}) for time in times]
        for seed in range(12):
            steps.append(("produce", {**PRODUCE, "batch": "mixed", "codec": codec, "seed": seed}))
    steps += [("fetch", FETCH), ("offsets", {**OFFSETS, "time": NOW + 5}), ("settings", {"topic": 1, "kind": 2})]
    compare(brokers, steps)


@pytest.mark.parametrize("codec", range(5))
def test_records_that_are_not_numbered_from_0(brokers, codec):
    create = ("create", {"topic": 1, "count": 1, "factor": 1, "settings": [], "only": False})
    compare(brokers, [create, ("produce", {**PRODUCE, "batch": "numbers", "codec": codec})])


POLICIES = [
    "",
    ",",
    "delete,,compact",
    "delete,delete",
    " delete , compact ",
    "compact",
    "delete,compact,",
    "none",
    "compact,none",
]


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(brokers, policy):
    def change(value, operation):
        changes = [(("cleanup.policy", value), operation)]
        return "configure", {"topic": 1, "only": False, "kind": 2, "changes": changes}

    shown = ("settings", {"topic": 1, "kind": 2})
    create = ("create", {"topic": 1, "count": 1, "factor": 1, "settings": [("cleanup.policy", policy)], "only": False})
    again = ("create", {"topic": 1, "count": 1, "factor": 1, "settings": [], "only": False})
    steps = [create, shown, again, change(policy, 0)]
    steps += [change(value, operation) for value in ("delete", "compact", policy) for operation in (2, 3)]
    for value in ("compact", "delete"):  # the last one goes
        steps += [change(value, 3), ("delete records", {"topic": 1, "partition": 0, "offset": 0})]
    compare(brokers, [*steps, change("compact", 2)])
