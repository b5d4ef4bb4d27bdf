"""Where our answers differ from Apache Kafka's on purpose, each with the reason and the place in Kafka 4.4 or a KIP.

A difference is known by the step and both answers; nothing here may hide a loss, a reordering or a false success.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.protocol import errors
from tests.differential.steps.making import Step


class Difference(NamedTuple):
    """One difference: why, and when it is this one."""

    reason: str
    applies: Callable[[Step, Any, Any], bool]


def codes(answer: Any) -> list[int]:
    """Every error code in an answer, in order; 0 where all is well."""
    if isinstance(answer, dict):
        found = [answer["error_code"]] if "error_code" in answer else []
        return found + [code for value in answer.values() for code in codes(value)]
    return [code for value in answer for code in codes(value)] if isinstance(answer, list) else []


def without(answer: Any, field: str) -> Any:
    """An answer without a field."""
    if isinstance(answer, dict):
        return {k: without(v, field) for k, v in answer.items() if k != field}
    return [without(v, field) for v in answer] if isinstance(answer, list) else answer


def produced(step: Step, kind: str) -> bool:
    """Whether the step produces such a batch."""
    return step[0] == "produce" and step[1]["batch"] == kind


DIFFERENCES: dict[str, Difference] = {
    "an empty cleanup policy": Difference(
        "Kafka 4.4 takes an empty cleanup.policy, which keeps everything (KIP-1161; ConfigDef.ValidList.in of LogConfig); ours "
        "refuses it with INVALID_CONFIG: retention.ms=-1 and retention.bytes=-1 say the same.",
        lambda step, ours, kafkas: (
            step[0] == "configure"
            and codes(ours) == [errors.INVALID_CONFIG]
            and codes(kafkas) == [0]
            and any(name == "cleanup.policy" and op == 3 for (name, _), op in step[1]["changes"])
        ),
    ),
    "no records at all": Difference(
        "Kafka never answers a Produce whose records are null: ProduceRequest.validateRecords lets them pass, "
        "ReplicaManager.handleProduceAppend fails on them, and so does ProduceRequest.partitionSizes when the error is to be "
        "answered; the client waits for its timeout. Ours answers INVALID_RECORD (INVALID_REQUIRED_ACKS for such acks).",
        lambda step, ours, kafkas: (
            produced(step, "none")
            and kafkas == "silent"
            and codes(ours) == [errors.INVALID_REQUIRED_ACKS if step[1]["acks"] == 2 else errors.INVALID_RECORD]
        ),
    ),
    "bytes behind a batch": Difference(
        "Kafka cuts bytes behind the last whole batch off and appends the rest (UnifiedLog.trimInvalidBytes); ours refuses "
        "the request with INVALID_RECORD and appends nothing.",
        lambda step, ours, kafkas: (
            produced(step, "long") and codes(ours) == [errors.INVALID_RECORD] and codes(kafkas) == [0]
        ),
    ),
    "a codec that there is not": Difference(
        "Kafka answers UNKNOWN_SERVER_ERROR, because CompressionType.forId throws an exception that has no code of its own; "
        "ours says UNSUPPORTED_COMPRESSION_TYPE.",
        lambda step, ours, kafkas: (
            produced(step, "codec")
            and codes(ours) == [errors.UNSUPPORTED_COMPRESSION_TYPE]
            and codes(kafkas) == [errors.UNKNOWN_SERVER_ERROR]
        ),
    ),
    "no id for a topic that is only checked": Difference(
        "A CreateTopics with validate_only answers with a topic id that no topic will ever have "
        "(ReplicationControlManager.createTopic makes it before it looks at validate_only); ours answers with none.",
        lambda step, ours, kafkas: (
            step[0] == "create"
            and step[1]["only"]
            and codes(ours) == [0]
            and [t["topic_id"] for t in ours["topics"]] == [""]
            and without(ours, "topic_id") == without(kafkas, "topic_id")
        ),
    ),
    "an answer to a member that has left": Difference(
        "Of a member that leaves Kafka answers a waiting JoinGroup, not a waiting SyncGroup "
        "(GroupMetadataManager.removeCurrentMemberFromClassicGroup); its client waits for its timeout. Ours answers both "
        "with UNKNOWN_MEMBER_ID.",
        lambda step, ours, kafkas: (
            step[0] == "parked"
            and step[1]["who"] == "sync"
            and step[1]["after"][0] == "leave"
            and kafkas == "silent"
            and codes(ours) == [errors.UNKNOWN_MEMBER_ID]
        ),
    ),
}


def explained(step: Step, ours: Any, kafkas: Any) -> str | None:
    """The name of the difference that explains two answers, if one does."""
    return next((name for name, known in DIFFERENCES.items() if known.applies(step, ours, kafkas)), None)
