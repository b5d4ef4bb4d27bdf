"""Where our answers differ from Apache Kafka's on purpose, each with the reason and the place in Kafka 4.4 or a KIP.

A difference is known by the step and both answers; nothing here may hide a loss, a reordering or a false success.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.protocol import errors
from tests.differential.steps.making import Step


class Difference(NamedTuple):
    """One difference: why, and when it is this one.

    ``ends``: from there on the brokers hold different things, and further steps say nothing.
    """

    reason: str
    applies: Callable[[Step, Any, Any], bool]
    ends: bool = False


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


def shown(answer: Any) -> list[tuple[str, str, str]] | None:
    """The groups in an answer of ListGroups or DescribeGroups that are there: id, state, type of protocol."""
    if isinstance(answer, tuple):
        return None if answer[0] else [(g["group_id"], g["group_state"], g["protocol_type"]) for g in answer[1]]
    if isinstance(answer, dict) and set(codes(answer)) <= {0, errors.GROUP_ID_NOT_FOUND}:
        found = [(g["group_id"], g["group_state"], g["protocol_type"]) for g in answer["groups"]]
        return [group for group in found if group[1] != "Dead"]
    return None


def aborted(ours: Any, kafkas: Any) -> list[tuple[list[Any], list[Any], int]]:
    """Of each partition of two fetches the aborted transactions, and the last offset that both have."""
    pairs = [
        (mine, theirs)
        for one, other in zip(ours["responses"], kafkas["responses"], strict=True)
        for mine, theirs in zip(one["partitions"], other["partitions"], strict=True)
    ]
    return [
        (
            mine["aborted_transactions"] or [],
            theirs["aborted_transactions"] or [],
            max([b[0] for b in mine["records"]], default=-1),
        )
        for mine, theirs in pairs
    ]


def more_that_are_empty(ours: list[tuple[str, str, str]] | None, kafkas: list[tuple[str, str, str]] | None) -> bool:
    """Whether the only difference is that ours has more groups, which have no members and never had any."""
    if ours is None or kafkas is None or any(group not in ours for group in kafkas):
        return False
    more = [group for group in ours if group not in kafkas]
    return bool(more) and all(state == "Empty" and not kind for _, state, kind in more)


def produced(step: Step, kind: str) -> bool:
    """Whether the step produces such a batch."""
    return step[0] == "produce" and step[1]["batch"] == kind


DIFFERENCES: dict[str, Difference] = {
    "no records at all": Difference(
        "Kafka never answers a Produce whose records are null: ProduceRequest.validateRecords lets them pass, "
        "ReplicaManager.handleProduceAppend fails on them, and so does ProduceRequest.partitionSizes when the error is to be "
        "answered; the client waits for its timeout. Ours answers INVALID_RECORD.",
        lambda step, ours, kafkas: (
            produced(step, "none") and kafkas == "silent" and codes(ours) == [errors.INVALID_RECORD]
        ),
    ),
    "bytes behind a batch": Difference(
        "Kafka cuts bytes behind the last whole batch off and appends the rest (UnifiedLog.trimInvalidBytes); ours refuses "
        "the request with INVALID_RECORD and appends nothing.",
        lambda step, ours, kafkas: (
            produced(step, "long") and codes(ours) == [errors.INVALID_RECORD] and codes(kafkas) == [0]
        ),
        ends=True,
    ),
    "records that are not numbered from 0": Difference(
        "Kafka appends an uncompressed batch whose records have other numbers than 0, 1, 2 ... as it is (LogValidator."
        "assignOffsetsNonCompressed does not look at them), so that consumers see offsets beyond the batch, or one twice. A "
        "compressed one it means to number again, but cannot without the keys and values that it skipped: UNKNOWN_SERVER_ERROR. "
        "Ours refuses both with INVALID_RECORD.",
        lambda step, ours, kafkas: (
            produced(step, "numbers") and codes(ours) == [errors.INVALID_RECORD] and codes(kafkas) == [0]
        ),
        ends=True,
    ),
    "a codec that there is not": Difference(
        "Kafka answers UNKNOWN_SERVER_ERROR, because CompressionType.forId throws an exception that has no code of its own; "
        "ours says UNSUPPORTED_COMPRESSION_TYPE.",
        lambda step, ours, kafkas: (
            produced(step, "codec")
            and codes(ours)
            == [errors.INVALID_REQUIRED_ACKS if step[1]["acks"] == 2 else errors.UNSUPPORTED_COMPRESSION_TYPE]
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
    "a group that only a refused commit made": Difference(
        "A commit from outside makes a group, also when it is refused (OffsetMetadataManager.validateOffsetCommit). Kafka "
        "shows it to ListGroups and DescribeGroups only once something else was stored after it, because they read at the "
        "last committed offset (GroupMetadataManager.listGroups, describeGroups); ours shows it at once.",
        lambda step, ours, kafkas: (
            step[0] in ("list groups", "describe group") and more_that_are_empty(shown(ours), shown(kafkas))
        ),
    ),
    "aborted transactions behind what is fetched": Difference(
        "Kafka lists the aborted transactions up to an offset that its sparse index gives for the size of the fetch "
        "(LocalLog.addAbortedTransactions), so also some that begin behind the last batch of the answer; ours those that "
        "concern the answer. A consumer meets the others with their batches.",
        lambda step, ours, kafkas: (
            step[0].startswith("fetch")
            and without(ours, "aborted_transactions") == without(kafkas, "aborted_transactions")
            and all(
                all(each in theirs for each in mine)
                and all(each["first_offset"] > last for each in theirs if each not in mine)
                for mine, theirs, last in aborted(ours, kafkas)
            )
        ),
    ),
    "a fenced producer that asks for its epoch again": Difference(
        "Kafka looks at the epoch only when no transaction is open (TransactionCoordinator.prepareInitProducerIdTransit): a "
        "producer with an earlier epoch aborts the transaction of the one that took over, is told CONCURRENT_TRANSACTIONS, "
        "and is fenced when it asks again. Ours answers PRODUCER_FENCED (before version 4 INVALID_PRODUCER_EPOCH) at once and "
        "leaves the transaction alone.",
        lambda step, ours, kafkas: (
            step[0] == "init"
            and step[1]["transactional"]
            and step[1]["keep"]
            and step[1]["epoch"] != 0
            and codes(ours) == [errors.PRODUCER_FENCED if step[1]["version"] >= 4 else errors.INVALID_PRODUCER_EPOCH]
            and codes(kafkas) == [errors.CONCURRENT_TRANSACTIONS]
        ),
        ends=True,
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


def explained(step: Step, ours: Any, kafkas: Any) -> Difference | None:
    """The difference that explains two answers, if one does."""
    return next((known for known in DIFFERENCES.values() if known.applies(step, ours, kafkas)), None)
