"""What happens when time passes, on our broker and on Apache Kafka 4.4: transactions and members that take too long."""

import time
import uuid

import pytest

from millstream.protocol import errors, records
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.heartbeat import HeartbeatRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.sync_group import SyncGroupRequest
from tests.differential.steps import play
from tests.differential.world import NOW, World

pytestmark = pytest.mark.system
FIRST = ("create", {"topic": 0, "count": 1, "factor": 1, "settings": [], "only": False})
TIMEOUT_MS = 1000
SESSION_MS = 6000  # the least that both allow


@pytest.fixture
def worlds(brokers):
    run = uuid.uuid4().hex[:8]
    made = [World(address, run) for address in brokers]
    yield made
    for world in made:
        world.close()


class Producer:
    """A transactional producer of one version of transactions, and the codes that it was answered with."""

    def __init__(self, world: World, version: int) -> None:
        self.world, self.version = world, version
        self.topic, self.name = world.name("t", 0), world.name("x", version)
        self.codes: list[tuple[str, int]] = []
        self.sequence = 0
        self.id, self.epoch = -1, -1
        self.begin()

    def begin(self, keep: bool = False) -> None:
        given = (self.id, self.epoch) if keep else (-1, -1)
        deadline = time.monotonic() + 10
        while True:
            made = self.world.ask(InitProducerIdRequest(self.name, TIMEOUT_MS, *given), 5)
            if made.error_code != errors.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self.codes.append(("init", made.error_code))
        if not made.error_code:
            self.codes.append(("epoch", made.producer_epoch))
            self.id, self.epoch, self.sequence = made.producer_id, made.producer_epoch, 0

    def send(self) -> None:
        if self.version == 1:
            topics = [AddPartitionsToTxnTopic(self.topic, [0])]
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=topics,
            )
            [added] = self.world.ask(request, 3).results_by_topic_v3_and_below
            self.codes.append(("add", added.results_by_partition[0].partition_error_code))
        batch = records.build(
            [(b"k", b"v")], NOW, producer_id=self.id, producer_epoch=self.epoch, base_sequence=self.sequence, transactional=True
        )  # fmt: skip
        topic = TopicProduceData(self.topic, bytes(16), [PartitionProduceData(0, bytes(batch))])
        answer = self.world.ask(ProduceRequest(self.name, -1, 2000, [topic]), 11 if self.version == 1 else 12)
        [result] = answer.responses[0].partition_responses
        self.codes.append(("produce", result.error_code))
        self.sequence += not result.error_code

    def end(self, commit: bool) -> None:
        made = self.world.ask(EndTxnRequest(self.name, self.id, self.epoch, commit), 3 if self.version == 1 else 5)
        self.world.settle_transaction(self.name)
        self.codes.append(("commit" if commit else "abort", made.error_code))
        if self.version == 2 and not made.error_code:
            self.codes.append(("epoch", made.producer_epoch))
            self.id, self.epoch, self.sequence = made.producer_id, made.producer_epoch, 0

    def state(self) -> str:
        [found] = self.world.ask(DescribeTransactionsRequest([self.name]), 0).transaction_states
        return found.transaction_state

    def wait_until_aborted(self) -> None:
        deadline = time.monotonic() + 15
        while self.state() != "CompleteAbort":
            assert time.monotonic() < deadline, f"{self.world.address}: the transaction is still {self.state()}"
            time.sleep(0.05)


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_takes_too_long(worlds, version):
    """It is aborted and its producer fenced, which may go on once it has asked for its epoch again (KIP-360, KIP-588)."""
    found = []
    for world in worlds:
        play(world, FIRST)
        producer = Producer(world, version)
        producer.send()
        producer.end(True)
        producer.send()
        producer.wait_until_aborted()
        producer.end(True)  # must not be told that it is committed
        producer.end(False)
        producer.send()
        producer.begin(keep=True)
        producer.begin()
        producer.send()
        producer.end(True)
        part = FetchPartition(0, fetch_offset=0, partition_max_bytes=100_000)
        topics = [FetchTopic(world.name("t", 0), partitions=[part])]
        world.producers[0] = (producer.id, producer.epoch)
        fetched = world.ask(
            FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, session_epoch=-1, topics=topics), 12
        )
        [seen] = fetched.responses[0].partitions
        kept = [kind if kind == "control" else "data" for _, kind, *_ in world.batches(seen.records)]
        found.append(
            (producer.codes, kept, [a.first_offset for a in seen.aborted_transactions], seen.last_stable_offset)
        )
    assert found[0] == found[1], f"ours:  {found[0]}\nKafka: {found[1]}"
    late = found[0][0][found[0][0].index(("produce", 0), 5) + 1]
    assert late[0] == "commit" and late[1] == (errors.PRODUCER_FENCED if version == 1 else errors.INVALID_TXN_STATE)


def test_a_member_that_falls_silent(worlds):
    """Others that wait for it go on when its session has ended; a member id that nobody joins with is waited for as long."""
    protocols = [JoinGroupRequestProtocol("range", b"\0\1\0\0\0\0\0\0\0\0")]
    waits, found = [], []

    def join(group, member):
        return JoinGroupRequest(group, SESSION_MS, 60_000, member, None, "consumer", protocols)

    for world in worlds:
        group = world.name("g", 0)
        silent = world.ask(join(group, ""), 5).member_id
        first = world.ask(join(group, silent), 5)
        codes = [first.error_code, world.ask(SyncGroupRequest(group, first.generation_id, silent), 3).error_code]
        member = world.ask(join(group, ""), 5).member_id
        world.ask(join(group, ""), 5)  # its answer is lost
        world.park("member", join(group, member), 5, None)
        assert not world.arrived(0.3)
        codes.append(world.ask(HeartbeatRequest(group, first.generation_id, silent), 3).error_code)
        waits.append((group, member, silent, first.generation_id, time.monotonic()))
        found.append(codes)
    for world, codes, (group, _member, silent, generation, since) in zip(worlds, found, waits, strict=True):
        assert world.arrived(20.0), f"{world.address}: no answer"
        assert 4 < time.monotonic() - since < 20
        joined = world.collect("member")
        codes += [joined["error_code"], joined["generation_id"] - generation, len(joined["members"])]
        codes.append(world.ask(HeartbeatRequest(group, generation, silent), 3).error_code)
    assert found[0] == found[1]
    assert found[0][2:] == [errors.REBALANCE_IN_PROGRESS, 0, 1, 1, errors.UNKNOWN_MEMBER_ID]
