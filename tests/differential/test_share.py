"""Share groups on our broker and on Apache Kafka 4.4: the same requests, the same answers, bad ones included."""

from __future__ import annotations

import random
import time

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millstream.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from millstream.protocol.messages.list_groups import ListGroupsRequest
from millstream.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.broker.share.workers import ACCEPT, REJECT, RELEASE, RENEW, Worker, configure, create, fresh, produce
from tests.broker.wire import Wire

pytestmark = [pytest.mark.system, pytest.mark.proof]
SECONDS = 30.0


class Side:
    """One broker, a topic and a group on it, and what was answered so far."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.address, self.topic, self.group = address, topic, group
        self.wire = Wire(address)
        create(self.wire, topic)
        assert configure(self.wire, group, share_auto_offset_reset="earliest") == 0
        self.said: list[object] = []
        self.workers: dict[str, Worker] = {}

    def say(self, what: str, *answer: object) -> None:
        self.said.append((what, *answer))

    def worker(self, name: str) -> Worker:
        if name not in self.workers:
            worker = self.workers[name] = Worker(self.address, self.group, self.topic, name)
            end = time.monotonic() + SECONDS
            while True:
                answer = worker.join()
                assert answer.error_code == 0, answer
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    break
                assert time.monotonic() < end
                time.sleep(0.1)
        return self.workers[name]

    def fetch(self, name: str, *acks, **more) -> None:
        """Share fetch; what is told of each partition, but for texts."""
        worker = self.worker(name)
        answer = worker.fetch(*acks, **more)
        parts = [
            (p.partition_index, p.error_code, p.acknowledge_error_code,
             [(o, r.delivery_count) for r in p.acquired_records for o in range(r.first_offset, r.last_offset + 1)])
            for t in answer.responses for p in t.partitions
        ]  # fmt: skip
        parts = [part for part in parts if any(part[1:])]
        self.say(f"fetch {name} {acks} {more}", answer.error_code, parts)
        if answer.error_code:
            worker.session -= 1

    def acknowledge(self, name: str, *acks, **more) -> None:
        self.say(f"acknowledge {name} {acks} {more}", self.worker(name).acknowledge(*acks, **more))

    def stands(self) -> None:
        """The lag. Kafka stores a start offset that has moved with the next change only, so that may be behind ours."""
        asked = DescribeShareGroupOffsetsRequestGroup(self.group, None)
        [told] = self.wire.ask(DescribeShareGroupOffsetsRequest([asked])).groups
        self.say("stands", told.error_code, [
            (t.topic_name == self.topic, p.partition_index, p.lag, p.error_code)
            for t in told.topics for p in t.partitions
        ])  # fmt: skip

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.wire.__exit__()


@pytest.fixture
def both(brokers):
    """Plays a script on both brokers and compares."""
    sides: list[Side] = []

    def play(script) -> None:
        topic, group = fresh("work"), fresh("group")
        for address in brokers:
            side = Side(address, topic, group)
            sides.append(side)
            script(side)
        ours, kafkas = (side.said for side in sides)
        for number, (mine, other) in enumerate(zip(ours, kafkas, strict=True)):
            before = "\n".join(map(str, ours[:number]))
            assert mine == other, f"{before}\nours:  {mine}\nKafka: {other}"

    yield play
    for side in sides:
        side.close()


def test_work(both):
    def script(on: Side) -> None:
        for _ in range(3):
            produce(on.wire, on.topic, *[b"x"] * 5)
        on.fetch("a", wait=5000, records=4)
        on.fetch("b", wait=5000, records=100)
        on.acknowledge("a", (0, 1, ACCEPT), (2, 2, REJECT), (3, 4, RELEASE))
        on.stands()
        on.fetch("b", wait=5000)
        on.acknowledge("b", (3, 14, *[ACCEPT, RELEASE] * 6))
        on.stands()
        on.fetch("a", wait=5000, mode=1, records=2)
        on.fetch("a", (4, 4, ACCEPT), wait=5000, mode=1, records=2)
        on.acknowledge("a", (6, 6, RELEASE))
        on.fetch("a", wait=5000, mode=1, records=2)
        on.acknowledge("a", (0, 0, ACCEPT))
        on.acknowledge("a", (14, 20, ACCEPT))
        on.acknowledge("a", (9, 9, ACCEPT), (8, 8, ACCEPT))
        on.acknowledge("a", (8, 9, ACCEPT, ACCEPT, ACCEPT))
        on.acknowledge("a", (8, 8, 9))
        on.acknowledge("a", (8, 8, RENEW))
        on.acknowledge("a", (8, 8, RENEW), renew=True)
        on.acknowledge("a", (3, 3, ACCEPT))
        on.acknowledge("a", (10, 10, ACCEPT))
        on.stands()
        on.acknowledge("b", (8, 8, ACCEPT))
        on.fetch("b", session=-1)
        on.worker("b").session = -1
        on.fetch("b", session=-1)
        on.stands()

    both(script)


def test_sessions(both):
    def script(on: Side) -> None:
        produce(on.wire, on.topic, b"x")
        a = on.worker("a")
        a.session = 5
        on.fetch("a")
        a.session = -1
        on.fetch("a", session=0)
        on.acknowledge("a", (0, 0, ACCEPT), session=0)
        on.acknowledge("a", (0, 0, ACCEPT), session=3)
        a.session = 0
        on.fetch("a", (0, 0, ACCEPT))
        a.session = 0
        on.fetch("a", wait=5000)
        on.acknowledge("a", (0, 0, RENEW), session=1)
        on.acknowledge("a", (0, 0, ACCEPT), session=9)
        a.session = 0
        on.fetch("a", wait=5000)  # again from the first: what it has stays its own
        on.acknowledge("a", (0, 0, ACCEPT), session=-1)
        on.acknowledge("a", (0, 0, ACCEPT), session=-1)
        a.session = 0
        a.topic = b"?" * 16
        on.fetch("a")

    both(script)


def test_members(both):
    def script(on: Side) -> None:
        def beat(group: str, member: str, epoch: int, topics: list[str] | None, rack: str | None = None) -> None:
            answer = on.wire.ask(ShareGroupHeartbeatRequest(group, member, epoch, rack, topics))
            on.say(f"beat {member} {epoch} {topics} {rack}", answer.error_code)

        beat("", "m", 0, [on.topic])
        beat(on.group, "", 0, [on.topic])
        beat(on.group, "m", 0, None)
        beat(on.group, "m", 0, [])
        beat(on.group, "m", -2, [on.topic])
        beat(on.group, "m", 0, [on.topic], "")
        beat(on.group, "m", 3, None)
        beat(on.group, "m", -1, None)
        on.worker("a")
        beat(on.group, "m", 3, None)
        beat(on.group, "a", 99, None)
        beat(on.group, "m", -1, None)

        def describe(group: str) -> None:
            [told] = on.wire.ask(ShareGroupDescribeRequest([group])).groups
            members = [(m.member_id, m.subscribed_topic_names == [on.topic]) for m in told.members]
            on.say("describe", told.error_code, told.group_state, told.assignor_name, members)

        describe(on.group)
        describe("nobody")
        describe("")
        listed = on.wire.ask(ListGroupsRequest([], ["share"])).groups
        on.say("list", [(g.group_state, g.group_type, g.protocol_type) for g in listed if g.group_id == on.group])
        on.say("delete", on.wire.ask(DeleteGroupsRequest([on.group])).results[0].error_code)
        on.say("leave", on.worker("a").leave().error_code)
        on.say("leave", on.worker("a").leave().error_code)
        describe(on.group)
        on.say("delete", on.wire.ask(DeleteGroupsRequest([on.group])).results[0].error_code)
        on.say("delete", on.wire.ask(DeleteGroupsRequest([on.group])).results[0].error_code)
        describe(on.group)

    both(script)


def test_offsets(both):
    def script(on: Side) -> None:
        def alter(topic: str, start: int, partition: int = 0, group: str = "") -> None:
            parts = [AlterShareGroupOffsetsRequestPartition(partition, start)]
            asked = AlterShareGroupOffsetsRequest(group or on.group, [AlterShareGroupOffsetsRequestTopic(topic, parts)])
            answer = on.wire.ask(asked)
            codes = [p.error_code for t in answer.responses for p in t.partitions]
            on.say(f"alter {topic == on.topic} {partition} {start} {group}", answer.error_code, codes)

        def delete(topic: str, group: str = "") -> None:
            asked = DeleteShareGroupOffsetsRequest(group or on.group, [DeleteShareGroupOffsetsRequestTopic(topic)])
            answer = on.wire.ask(asked)
            on.say(f"delete {topic == on.topic} {group}", answer.error_code, [t.error_code for t in answer.responses])

        def describe(topic: str, partition: int, group: str = "") -> None:
            asked = DescribeShareGroupOffsetsRequestTopic(topic, [partition])
            request = DescribeShareGroupOffsetsRequest(
                [DescribeShareGroupOffsetsRequestGroup(group or on.group, [asked])]
            )
            [told] = on.wire.ask(request).groups
            parts = [(p.start_offset < 0, p.lag, p.error_code) for t in told.topics for p in t.partitions]
            on.say(f"describe {topic == on.topic} {partition} {group}", told.error_code, parts)

        produce(on.wire, on.topic, *[b"x"] * 10)
        delete(on.topic)
        describe(on.topic, 0)
        on.fetch("a", wait=5000)
        alter(on.topic, 3)
        delete(on.topic)
        on.acknowledge("a", (0, 9, ACCEPT))
        describe(on.topic, 0)
        describe("nowhere", 0)
        on.workers.pop("a").leave()
        describe(on.topic, 0)
        alter(on.topic, 3)
        alter(on.topic, 3, 5)
        alter("nowhere", 0)
        describe(on.topic, 0)
        on.fetch("b", wait=5000)
        on.acknowledge("b", (3, 9, ACCEPT))
        describe(on.topic, 0)
        on.workers.pop("b").leave()
        delete("nowhere")
        delete(on.topic)
        describe(on.topic, 0)

    both(script)


def test_records_that_go(both):
    def script(on: Side) -> None:
        for _ in range(4):
            produce(on.wire, on.topic, *[b"x"] * 5)
        on.fetch("a", wait=5000, records=7)
        gone = DeleteRecordsRequest([DeleteRecordsTopic(on.topic, [DeleteRecordsPartition(0, 8)])], 5000)
        on.say("gone", on.wire.ask(gone).topics[0].partitions[0].error_code)
        on.fetch("b", wait=5000)
        on.acknowledge("b", (10, 19, ACCEPT))
        on.acknowledge("a", (8, 9, ACCEPT))

    both(script)


@pytest.mark.parametrize("seed", range(8))
def test_at_random(both, seed):
    def script(on: Side) -> None:
        chance = random.Random(seed)
        end = 0
        for _ in range(25):
            name, what = chance.choice("ab"), chance.randrange(4)
            if what == 0:
                count = chance.randint(1, 6)
                produce(on.wire, on.topic, *[b"x"] * count)
                end += count
            elif what == 1:
                on.fetch(name, records=chance.randint(1, 8), mode=chance.randrange(2), wait=300)
            else:
                first = chance.randint(0, max(end, 1))
                last = first + chance.randint(0, 3)
                kinds = [chance.choice((ACCEPT, RELEASE, REJECT)) for _ in range(last - first + 1)]
                if not on.worker(name).session:
                    on.fetch(name, records=3, wait=300)
                on.acknowledge(name, (first, last, *(kinds if chance.randrange(2) else kinds[:1])))
                # What is wrong with offsets behind the last one that was acquired depends on what Kafka has in its cache.
                what, code = on.said[-1]
                on.said[-1] = what, code in (errors.INVALID_REQUEST, errors.INVALID_RECORD_STATE), 0
        if any(what.startswith("acknowledge") and not answer[0] for what, *answer in on.said):
            on.stands()  # before an acknowledgement Kafka has not stored where the group begins

    both(script)
