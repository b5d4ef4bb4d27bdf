"""Resuming: from whatever prefix each partition holds, the rest is sent once and in order; foreign contents are refused."""

import pytest
from demo.events import Arrival, Departure, few, replays
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.demo.pacing import Pacer
from millstream.demo.resume import Last, OtherInput, check, remaining
from millstream.demo.sequence import TOPICS, Replay

PARTITIONS = dict.fromkeys(TOPICS, 2)


def logs_of(replay):
    logs = {(topic, p): [] for topic in TOPICS for p in range(replay.partitions[topic])}
    for slot in replay.slots():
        logs[slot.topic, slot.partition].append(Last(replay.key(slot), replay.value(slot)))
    return logs


def cut(draw, logs):
    return {where: log[: draw(st.integers(0, len(log)))] for where, log in logs.items()}


def last_of(logs):
    return {where: log[-1] for where, log in logs.items() if log}


@few
@given(st.data(), replays())
def test_whatever_is_stored_the_rest_is_sent_once_and_in_order(data, replay):
    whole = logs_of(replay)
    logs = cut(data.draw, whole)
    for _ in range(3):  # crashes, one after the other
        stored = {where: len(log) for where, log in logs.items()}
        assert check(replay, stored, last_of(logs)) == sum(stored.values())
        rest = list(remaining(replay.slots(), stored))
        assert [s.number for s in rest] == sorted(s.number for s in rest)
        for slot in rest[: data.draw(st.integers(0, len(rest)))]:
            logs[slot.topic, slot.partition].append(Last(replay.key(slot), replay.value(slot)))
    for slot in remaining(replay.slots(), {where: len(log) for where, log in logs.items()}):
        logs[slot.topic, slot.partition].append(Last(replay.key(slot), replay.value(slot)))
    assert logs == whole


@few
@given(st.data(), replays(), st.integers(0, 120))
def test_paced_partitions_stay_close_through_crashes(data, replay, ahead):
    """Acknowledgements come in any order over partitions, crashes lose what was not stored: no partition runs off."""
    stored = {(topic, p): 0 for topic in TOPICS for p in range(replay.partitions[topic])}
    times = {(s.topic, s.partition, s.offset): s.minute for s in replay.slots()}
    for _ in range(3):
        pacer, flying = Pacer(ahead), {where: [] for where in stored}
        for slot in remaining(replay.slots(), stored):
            while not pacer.may_send(slot.minute):
                where = data.draw(st.sampled_from([w for w, f in flying.items() if f]))
                first = flying[where].pop(0)
                stored[where] += 1
                pacer.acknowledged(first.number)
            waiting = [times[(*w, stored[w])] for w in stored if flying[w]]
            assert all(slot.minute - minute <= ahead for minute in waiting)
            pacer.sent(slot.number, slot.minute)
            flying[slot.topic, slot.partition].append(slot)
            if data.draw(st.integers(0, 30)) == 0:
                break


@few
@given(st.data(), replays())
def test_another_input_is_refused(data, replay):
    logs = cut(data.draw, logs_of(replay))
    filled = [where for where, log in logs.items() if log]
    assume(filled)
    where = data.draw(st.sampled_from(filled))
    logs[where][-1] = Last(b"somebody", b"else's")
    stored = {w: len(log) for w, log in logs.items()}
    with pytest.raises(OtherInput, match=rf"{where[0]} \[{where[1]}\] at offset {stored[where] - 1} holds"):
        check(replay, stored, last_of(logs))


@few
@given(replays())
def test_more_than_the_input_is_refused(replay):
    logs = logs_of(replay)
    where = next(w for w, log in logs.items() if log)
    logs[where].append(logs[where][-1])
    with pytest.raises(OtherInput, match="more than the whole input"):
        check(replay, {w: len(log) for w, log in logs.items()}, last_of(logs))


def test_nothing_stored_is_a_beginning():
    replay = Replay([], Departure, Arrival, PARTITIONS, bad=0)
    assert check(replay, {(topic, p): 0 for topic in TOPICS for p in range(2)}, {}) == 0
