"""A real consumer reads across archive, disk and tail without noticing, and others are not held up by it."""

import os
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.serving import Process
from tests.brokers import wait_until

pytest.importorskip("fsspec", reason="the archive needs fsspec: pip install 'millstream[archive]'")
pytestmark = pytest.mark.system
VALUE = os.urandom(10_000)


def test_across_archive_disk_and_tail(tmp_path):
    archive = tmp_path / "archive"
    with Process(tmp_path / "data") as broker:
        config = {
            "millstream.archive": f"file://{archive}",
            "segment.bytes": str(1 << 20),
            "local.retention.bytes": str(2 << 20),
        }
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(10)
        producer = Producer({"bootstrap.servers": broker.address, "batch.size": 50_000})
        start = int(time.time() * 1000)
        for i in range(1000):
            producer.produce("t", b"%06d" % i + VALUE, timestamp=start + i)
            producer.poll(0)
        assert producer.flush(20) == 0
        folder = broker.folder / "topics" / "t" / "0"
        wait_until(lambda: len(list(folder.glob("*.log"))) <= 4, "local copies go")
        assert len(list(archive.rglob("*.log"))) >= 6
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        found = consumer.offsets_for_times([TopicPartition("t", 0, start + 123)], timeout=10)
        assert found[0].offset == 123
        consumer.assign([TopicPartition("t", 0, 0)])
        seen = []
        deadline = time.monotonic() + 20
        while len(seen) < 1000 and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.5):
                assert message.error() is None
                seen.append(int(message.value()[:6]))
        assert seen == list(range(1000))
        # The archive goes away: an error for who wants it, service for the others.
        for path in archive.rglob("*.log"):
            path.unlink()
    with broker:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.poll(1.5) is None
        consumer.assign([TopicPartition("t", 0, 990)])
        assert consumer.poll(10).offset() == 990
        consumer.close()
        assert "cannot be fetched" in broker.log.read_text()


def test_the_broker_starts_without_the_package():
    code = "import sys, millstream.broker.server; assert 'fsspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
