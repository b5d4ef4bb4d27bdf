"""The same random requests to our broker and to Apache Kafka 4.4: the same answers.

``MILLSTREAM_DIFFERENTIAL_EXAMPLES`` sequences (20 if not set); with ``MILLSTREAM_DIFFERENTIAL_SURVEY=1`` every
difference of the run is collected and printed instead of the first one being made small.
"""

import collections
import os
import time
import uuid

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from millstream.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.differential.differences import explained
from tests.differential.steps import play, sequence
from tests.differential.world import World

pytestmark = [pytest.mark.system, pytest.mark.proof]
EXAMPLES = int(os.environ.get("MILLSTREAM_DIFFERENTIAL_EXAMPLES", "20"))
SURVEY = bool(os.environ.get("MILLSTREAM_DIFFERENTIAL_SURVEY"))
STEPS = 30
# A parked request that one broker has answered must be answered by the other one, too, within so long.
PARKED_SECONDS = 10.0
PARKING = ("join", "sync", "leave")
FIRST = ("create", {"topic": 0, "count": 2, "factor": 1, "settings": [], "only": False})


def compare(brokers, steps, report=None):
    """Play the steps on both brokers."""
    run = uuid.uuid4().hex[:8]
    worlds = [World(address, run) for address in brokers]
    try:
        for number, each in enumerate([FIRST, *steps]):
            answers = [(each, *(play(world, each) for world in worlds))]
            answers += parked(worlds, each)
            for what, ours, kafkas in answers:
                if ours == kafkas:
                    continue
                if known := explained(what, ours, kafkas):
                    if known.ends:
                        return
                    continue
                if report is not None:
                    report(what, ours, kafkas, [FIRST, *steps][:number])
                    return
                raise AssertionError(f"step {number}: {what}\nours:  {ours}\nKafka: {kafkas}")
    finally:
        for world in worlds:
            world.close()


def parked(worlds, step):
    """Answers to requests that waited: what one broker has answered by now, the other one must answer, too."""
    found = []
    seconds = 0.05 if step[0] in PARKING else 0.0
    deadline = time.monotonic() + PARKED_SECONDS
    while any(world.parked for world in worlds):
        have = [world.arrived(seconds) for world in worlds]
        if have[0] == have[1] or time.monotonic() > deadline:
            for who in sorted(have[0] | have[1]):
                answers = [
                    world.collect(who) if who in there else "silent" for world, there in zip(worlds, have, strict=True)
                ]
                found.append((("parked", {"who": who.split(" ")[0], "after": step}), *answers))
            if not have[0] and not have[1]:
                break
        seconds = 0.01
    return found


def test_the_same_requests_have_the_same_answers(brokers):
    found = collections.OrderedDict()

    def report(each, ours, kafkas, before):
        key = (each[0], each[1].get("batch", ""))
        found.setdefault(key, []).append((each, ours, kafkas, before))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate] if SURVEY else [Phase.explicit, Phase.generate, Phase.shrink],
    )
    @example([])
    @given(sequence(STEPS))
    def run(steps):
        compare(brokers, steps, report if SURVEY else None)

    run()
    if found:
        lines = []
        for key, cases in found.items():
            each, ours, kafkas, before = min(cases, key=lambda c: len(c[3]))
            played = "".join(f"\n    {b}" for b in before)
            lines.append(f"{key} ({len(cases)})\n  {each}\n  ours:  {ours}\n  Kafka: {kafkas}\n  after: {played}")
        pytest.fail("\n".join(lines))


def consumer_group_commits(world):
    """A consumer group of the new protocol that grows, and commits with right, earlier, later and no epochs."""
    topic, group, codes = world.name("t", 0), world.name("g", 0), []
    play(world, FIRST)
    topic_id = world.topic_ids[topic]

    def beat(member, epoch, owned):
        mine = (
            None if owned is None else [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, owned)] if owned else []
        )
        request = ConsumerGroupHeartbeatRequest(group, member, epoch, None, None, 60_000, [topic], None, None, mine)
        if epoch > 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names = -1, None
        answer = world.ask(request, 1)
        assert not answer.error_code, answer
        held = [sorted(t.partitions) for t in answer.assignment.topic_partitions] if answer.assignment else None
        return answer.member_epoch, held[0] if held else held

    def commit(member, epoch, index):
        part = OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(index, 5)])
        codes.append(
            world.ask(OffsetCommitRequest(group, epoch, member, topics=[part]), 9).topics[0].partitions[0].error_code
        )

    def until(member, epoch, owned, wanted):
        deadline = time.monotonic() + 10
        while (held := beat(member, epoch, owned))[1] != wanted:
            assert time.monotonic() < deadline, f"{member} has {held}, not {wanted}"
            epoch = held[0]
            owned = held[1] if held[1] is not None else owned
            time.sleep(0.05)
        return held

    one, two = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
    first, _ = until(one, 0, [], [0, 1])
    commit("", -1, 0)  # from outside, while it has a member
    commit(one, first, 0)
    beat(two, 0, [])
    until(one, first, [0, 1], [0])
    later, _ = beat(one, first, [0])  # it has let go of the other partition
    codes.append(later > first)
    for epoch in (first - 1, first, later, later + 1):
        for index in (0, 1):
            commit(one, epoch, index)
    return codes


def test_a_member_commits_with_an_earlier_epoch_what_it_has_had_since_then(brokers):
    """KIP-1251."""
    found = []
    for address in brokers:
        world = World(address, uuid.uuid4().hex[:8])
        found.append(consumer_group_commits(world))
        world.close()
    assert found[0] == found[1]
    assert found[0][5] == 0  # the earlier epoch, on the partition that it kept
