"""Where our answers differ from Apache Kafka's on purpose, each with the reason and Kafka's source or a KIP.

A difference is known by the step and both answers; nothing here may hide a loss, a reordering or a false success.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.differential.steps import Step


class Difference(NamedTuple):
    """One difference: why, and when it is this one."""

    reason: str
    applies: Callable[[Step, Any, Any], bool]


def codes(answer: Any) -> set[int]:
    """Every error code in an answer."""
    found: set[int] = set()
    if isinstance(answer, dict):
        for key, value in answer.items():
            found |= {value} if key in ("error_code", "partition_error_code") else codes(value)
    elif isinstance(answer, list):
        for value in answer:
            found |= codes(value)
    return found - {0}


def without(answer: Any, field: str) -> Any:
    """An answer without a field."""
    if isinstance(answer, dict):
        return {k: without(v, field) for k, v in answer.items() if k != field}
    return [without(v, field) for v in answer] if isinstance(answer, list) else answer


DIFFERENCES: dict[str, Difference] = {
    "an empty cleanup policy": Difference(
        "Kafka 4.4 takes an empty cleanup.policy, which keeps everything (KIP-1161); ours refuses it with INVALID_CONFIG: "
        "retention.ms=-1 and retention.bytes=-1 say the same.",
        lambda step, ours, kafkas: (
            step[0] == "configure"
            and codes(ours) == {40}
            and not codes(kafkas)
            and any(name == "cleanup.policy" and op == 3 for (name, _), op in step[1]["changes"])
        ),
    ),
    "a group that only a refused commit made": Difference(
        "Kafka makes a group in memory before it looks at the metadata of a commit that it then refuses "
        "(OffsetMetadataManager.commitOffset); ours has no group until something is stored.",
        lambda step, ours, kafkas: (
            step[0] in ("delete group", "delete offsets") and codes(ours) == {69} and not codes(kafkas)
        ),
    ),
    "no records at all": Difference(
        "Kafka never answers a Produce whose records are null (observed with 4.4: the request fails in the broker's handler, and "
        "the client waits for its timeout); ours answers with INVALID_RECORD.",
        lambda step, ours, kafkas: step[0] == "produce" and step[1]["batch"] == "none" and kafkas == "silent",
    ),
    "bytes behind a batch": Difference(
        "Kafka cuts bytes behind the last whole batch off and appends the rest (UnifiedLog.trimInvalidBytes); ours refuses "
        "the request with INVALID_RECORD and appends nothing.",
        lambda step, ours, kafkas: step[0] == "produce" and step[1]["batch"] == "long" and codes(ours) == {87},
    ),
    "no id for a topic that is only checked": Difference(
        "A CreateTopics with validate_only answers with a topic id that no topic will ever have "
        "(ReplicationControlManager.createTopic makes it before it looks at validate_only); ours answers with none.",
        lambda step, ours, kafkas: (
            step[0] == "create" and step[1]["only"] and without(ours, "topic_id") == without(kafkas, "topic_id")
        ),
    ),
}


def explained(step: Step, ours: Any, kafkas: Any) -> str | None:
    """The name of the difference that explains two answers, if one does."""
    return next((name for name, known in DIFFERENCES.items() if known.applies(step, ours, kafkas)), None)
