"""What a batch unpacks to has a bound in every consumer, and what happens at the bound is said."""

import signal
import subprocess
import sys

import pytest

from millstream.client import admin, consumer
from millstream.client.consumer import MAX_GROWTH, WINDOW_S, Growth
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.settings import Kafka, MillstreamError
from tests.brokers import ADDRESS, Broker
from tests.client import bombs

MB = 2**20


def test_growth_counts_within_one_wait_only():
    growth = Growth()
    assert [growth.add(t / 10, 100 + 10 * t, 7) for t in range(3)] == [0, 10, 20]
    assert growth.add(0.3, 500, 8) == 0, "a message came: what it took is the caller's"
    assert growth.add(0.4, 600, None) == 0, "nobody waits"
    assert growth.add(0.5, 700, 8) == 0


def test_growth_forgets_what_is_slow():
    growth = Growth()
    found = [growth.add(second, second * 10 * MB, 1) for second in range(600)]
    assert max(found) == WINDOW_S * 10 * MB < MAX_GROWTH


def test_what_the_user_set_wins_over_the_bounds(monkeypatch):
    given = {}
    monkeypatch.setattr(consumer, "Consumer", given.update)
    monkeypatch.setattr(consumer, "_watch", lambda _: None)
    consumer.consumer(Kafka("127.0.0.1:1", {"receive.message.max.bytes": "200000000"}), "x", fetch_wait_max_ms=5)
    assert given["receive.message.max.bytes"] == "200000000"
    assert given["fetch.max.bytes"] == consumer.MAX_ANSWER and given["fetch.wait.max.ms"] == 5


@pytest.fixture
def planted(tmp_path):
    """A function that puts a batch behind one good message, and gives the log."""
    if ADDRESS:
        pytest.skip("the Kafka of MILLSTREAM_TEST_KAFKA takes no planted batches")
    broker = Broker(tmp_path / "data")
    broker.folder.mkdir()

    def plant(batch: bytes) -> Kafka:
        broker.start()
        admin.ensure_topic(broker.kafka, "t", 1, {})
        client = producer(broker.kafka)
        client.produce("t", b"hello")
        assert client.flush(30) == 0
        broker.end(signal.SIGKILL)
        bombs.plant(broker.folder, "t", batch)
        broker.start()
        assert admin.end_offsets(broker.kafka, ["t"])["t", 0] > 1, "the planted batch was not taken"
        return broker.kafka

    yield plant
    broker.end()


def run_tail(kafka: Kafka) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run `millstream tail` in a process of its own; also return the most memory that it had, in bytes."""
    code = (
        "import atexit, os, re, sys; from millstream.client import consumer\n"
        "def peak(): return re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
        "def told(code): sys.stderr.write(f'peak {peak()}\\n'); sys.stderr.flush(); os._exit(code)\n"
        "consumer._end.__defaults__ = (told,); atexit.register(lambda: sys.stderr.write(f'peak {peak()}\\n'))\n"
        "from millstream.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "tail", "t", "--kafka", kafka.bootstrap, "--from", "earliest", "--no-follow"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done, int(done.stderr.split("peak ")[1].split()[0]) * 1024


@pytest.mark.system
def test_a_value_of_a_gigabyte_is_refused_with_its_offset(planted):
    kafka = planted(bombs.of_one_value(1, 1_000_000_000))
    done, peak = run_tail(kafka)
    assert done.returncode == 1 and "hello" in done.stdout
    assert "topic 't' [0] has a batch at offset 1 that cannot be unpacked" in done.stderr
    assert peak < 200 * MB
    with pytest.raises(MillstreamError, match="unpacks to more than 64 MB"):
        list(tail(kafka, "t", "earliest", follow=False))
    assert list(tail(kafka, "t", 2, follow=False)) == []


@pytest.mark.system
def test_millions_of_tiny_records_end_the_process_before_they_fill_the_machine(planted):
    """63 MB unpacked, below what librdkafka can be told; without the watch it takes 2.5 GB."""
    done, peak = run_tail(planted(bombs.of_records(1, 9_000_000)))
    assert done.returncode == 1
    assert "error: reading 't' is given up: a batch" in done.stderr and "from a later offset" in done.stderr
    assert peak < MAX_GROWTH + 250 * MB


@pytest.mark.system
def test_large_batches_that_are_meant_are_read(planted):
    done, _ = run_tail(planted(bombs.of_records(1, 200_000)))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 200_001)
