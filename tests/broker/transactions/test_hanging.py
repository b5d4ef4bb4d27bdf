"""A transaction that a power cut left open in a partition: Kafka's own tool finds it and ends it, and readers go on.

The next transaction of its id ends it, too, and does not commit what never was committed.
"""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from millstream.protocol import errors
from millstream.settings import Settings
from millstream.spark import java
from tests.apache_kafka import fetched
from tests.broker.transactions.test_endings import Client, inside, stable
from tests.broker.transactions.test_endings import create as created
from tests.broker.wire import Wire
from tests.torture.forgetful import Disk
from tests.torture.loads import QUICK, Broker, create

__all__ = ["inside"]
pytestmark = pytest.mark.system
TOOL = "org.apache.kafka.tools.TransactionsCommand"
TOOLS_S = 60.0


@pytest.fixture
def tool():
    """Runs kafka-transactions.sh; what it prints, a list of words a line."""
    runtime = java.java_home(Settings.load().cache) / "bin" / "java"
    paths = fetched(Path(__file__).parents[2] / "conformance" / "java.txt")
    words = [runtime, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, paths)), TOOL]

    def run(address: str, line: str) -> list[list[str]]:
        command = [*words, "--bootstrap-server", address, *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOLS_S, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split() for line in done.stdout.splitlines() if line.strip()]

    return run


class Cut:
    """A broker whose power is cut in the middle of a transaction, of which only what is in the partition survives."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(folder / "disk")
        self.data, self.after = folder / "before", folder / "after"
        self.data.mkdir()
        self.disk.keep(self.data)
        self.broker = Broker(self.disk.environment).start(self.data)
        create(self.broker.address, "loose")
        create(self.broker.address, "other")

    def producer(self) -> Producer:
        settings = {"bootstrap.servers": self.broker.address, "transactional.id": "torn", **QUICK}
        made = Producer(settings)
        made.init_transactions(20)
        return made

    def sync(self, *topics: str) -> None:
        """Everything that these topics hold is on disk."""
        for topic in topics:
            for path in (self.data / "topics" / topic).rglob("*"):
                self.disk._sync(path)

    def cut(self) -> None:
        self.broker.end(signal.SIGKILL)
        self.disk.cut(self.data, self.after)
        self.broker.start(self.after)

    def committed(self) -> list[bytes]:
        """What a reader of committed records gets to see, up to the last stable offset."""
        settings = {"bootstrap.servers": self.broker.address, "group.id": "reader", "enable.partition.eof": True}
        consumer = Consumer({**settings, "isolation.level": "read_committed", **QUICK})
        consumer.assign([TopicPartition("loose", 0, 0)])
        found = []
        while True:
            message = consumer.poll(20)
            assert message is not None, "the reader hangs"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                consumer.close()
                return found
            found.append(message.value())

    def write(self, *values: bytes, transaction: Producer | None = None) -> None:
        producer = transaction or Producer({"bootstrap.servers": self.broker.address, **QUICK})
        for value in values:
            producer.produce("loose", value, partition=0)
        assert producer.flush(20) == 0


@pytest.fixture
def torn(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("the disk that forgets is compiled with cc")
    made = Cut(tmp_path)
    yield made
    made.broker.end()


def hang(torn: Cut, known: bool) -> None:
    """Leave a transaction open behind the record `first`, the coordinator's memory of it lost."""
    if not known:
        torn.disk.keep(torn.data)
    producer = torn.producer()
    producer.begin_transaction()
    torn.write(b"first", transaction=producer)
    producer.commit_transaction(20)
    if known:
        torn.disk.keep(torn.data)
    producer.begin_transaction()
    torn.write(b"lost", b"lost too", transaction=producer)
    torn.sync("loose")
    torn.cut()
    torn.write(b"after")


@pytest.mark.parametrize("known", [True, False], ids=["a known id", "an unknown id"])
def test_kafkas_tool_finds_and_ends_it(torn, tool, known):
    hang(torn, known)
    assert torn.committed() == [b"first"]
    address = torn.broker.address
    heads, found = tool(address, "find-hanging --broker-id 0 --max-transaction-timeout 0")
    row = dict(zip(heads, found, strict=True))
    assert (row["Topic"], row["Partition"], row["StartOffset"]) == ("loose", "0", "2")
    tool(address, f"abort --topic loose --partition 0 --start-offset {row['StartOffset']}")
    assert tool(address, "find-hanging --topic loose --max-transaction-timeout 0") == [heads]
    assert torn.committed() == [b"first", b"after"]
    producer = torn.producer()
    producer.begin_transaction()
    torn.write(b"more", transaction=producer)
    producer.commit_transaction(20)
    assert torn.committed() == [b"first", b"after", b"more"]
    torn.broker.end(signal.SIGKILL)
    torn.broker.start()
    assert torn.committed() == [b"first", b"after", b"more"]


def test_what_was_never_committed_is_not_committed_by_the_next_transaction_of_its_id(torn):
    hang(torn, known=True)
    producer = torn.producer()
    producer.begin_transaction()
    torn.write(b"more", transaction=producer)
    producer.commit_transaction(20)
    assert torn.committed() == [b"first", b"after", b"more"]


class Forgotten:
    """A partition with a transaction from offset 2 on, behind a committed one, which the coordinator does not know of."""

    def __init__(self, inside, newer):
        self.inside, self.newer = inside, newer
        with inside.wire() as wire:
            created(wire, "o", "os")
        self.client = Client(inside)
        self.transaction()
        states, saved = inside.folder / "topics" / "__transaction_state", inside.folder.with_name("saved")
        inside.end()
        shutil.copytree(states, saved)
        inside.start()
        self.reconnect()
        self.write()
        inside.end()
        shutil.rmtree(states)
        shutil.copytree(saved, states)
        inside.start()
        self.reconnect()
        assert stable(inside, "o") == 2

    def reconnect(self):
        self.client.socket.close()
        Wire.__init__(self.client, self.inside.address)

    def add(self):
        return {0} if self.newer else self.client.add(("o", 0))

    def write(self):
        assert self.add() == {0}
        assert self.client.produce(("o", 0), newer=self.newer) == [0]

    def transaction(self):
        self.write()
        assert self.client.end(version=5 if self.newer else 4) == 0

    def aborted(self):
        """First offsets of the aborted transactions."""
        partition = self.inside.broker.log.topics["o"].partitions[0]
        assert partition.last_stable_offset == partition.end_offset
        return [first for _, first in partition.read(0, 10**6, committed=True).aborted]


@pytest.mark.parametrize("newer", [False, True], ids=["version 1", "version 2"])
def test_the_next_producer_of_its_id_ends_it(newer, inside):
    torn = Forgotten(inside, newer)
    torn.client.socket.close()
    torn.client = Client(inside)
    torn.transaction()
    assert torn.aborted() == [2]
    torn.transaction()
    assert torn.aborted() == [2]
    torn.client.socket.close()


def test_a_producer_of_version_1_that_goes_on_begins_another_one(inside):
    torn = Forgotten(inside, False)
    assert torn.client.produce(("o", 0)) == [errors.TRANSACTION_ABORTABLE]
    torn.client.sequence["o", 0] -= 1
    torn.transaction()
    assert torn.aborted() == [2]
    torn.client.socket.close()


def test_a_producer_of_version_2_goes_on_with_it(inside):
    torn = Forgotten(inside, True)
    torn.transaction()
    assert torn.aborted() == []
    torn.client.socket.close()


def test_a_full_disk_when_it_should_be_ended(inside):
    """Nothing is added, and the client tries again."""
    torn = Forgotten(inside, False)
    inside.fail("write", "o-0", errno.ENOSPC)
    assert torn.add() == {errors.COORDINATOR_NOT_AVAILABLE}
    inside.mend()
    torn.transaction()
    assert torn.aborted() == [2]
    torn.client.socket.close()
