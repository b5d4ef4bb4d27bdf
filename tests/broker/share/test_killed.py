"""Share groups and kill -9: what was answered as acknowledged is never delivered again, and nothing else is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from millstream.broker import failpoints
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from millstream.settings.failpoints import VARIABLE
from tests.broker.serving import Process
from tests.broker.share.workers import ACCEPT, RELEASE, Worker, configure, create, produce
from tests.broker.wire import Wire

pytestmark = [pytest.mark.system, pytest.mark.fault]
SETTINGS = ("group.share.min.record.lock.duration.ms=200", "share.coordinator.snapshot.update.records.per.snapshot=7")
TOPIC, GROUP = "work", "group"


@pytest.fixture
def broker(tmp_path):
    with Process(tmp_path / "data", *SETTINGS) as process:
        with Wire(process.address) as wire:
            create(wire, TOPIC)
            assert configure(wire, GROUP, share_auto_offset_reset="earliest") == 0
        yield process


def fill(broker, count, size=5):
    with Wire(broker.address) as wire:
        for _ in range(count // size):
            produce(wire, TOPIC, *[b"x"] * size)


def kill(broker):
    broker.end(signal.SIGKILL)
    broker.start()


def hired(broker):
    worker = Worker(broker.address, GROUP, TOPIC)
    assert worker.join().error_code == 0
    return worker


def test_after_kills(broker):
    done = set()
    fill(broker, 200)
    for round_ in range(4):
        worker = hired(broker)
        last = round_ == 3
        for step in range(10**6 if last else 6):
            got = [offset for offset, _ in worker.take(records=10)]
            assert not done & set(got)
            if not got:
                break
            kind = RELEASE if step % 3 == 2 and not last else ACCEPT
            mine = [offset for offset in got if offset % 7 or last]
            assert worker.acknowledge(*[(offset, offset, kind) for offset in mine]) == 0
            done |= set(mine) if kind == ACCEPT else set()
        worker.close()
        kill(broker)
    assert done == set(range(200))


@pytest.mark.parametrize("passes", [2, 3, 8, 9, 20])
def test_killed_between_storing_and_answering(broker, passes):
    """The acknowledgement may count or not; those before it do."""
    fill(broker, 100)
    broker.end()
    broker.environment = {VARIABLE: f"{failpoints.SHARE_STORED}:{passes}"}
    broker.start()
    broker.environment = {}
    worker, done, unsure = hired(broker), set(), set()
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            unsure = {offset for offset, _ in worker.take(records=5)}
            assert worker.acknowledge(*[(offset, offset, ACCEPT) for offset in sorted(unsure)]) == 0
            done, unsure = done | unsure, set()
    broker.popen.wait(10)
    broker.popen.stdout.close()
    broker.start()
    worker = hired(broker)
    left = {offset for _ in range(30) for offset, _ in worker.take(records=5)}
    assert not left & done
    assert left | done | unsure == set(range(100))
    assert unsure <= left or not unsure & left


def test_killed_while_a_group_begins(broker):
    fill(broker, 5)
    broker.end()
    broker.environment = {VARIABLE: failpoints.SHARE_STARTED}
    broker.start()
    broker.environment = {}
    with contextlib.suppress(ConnectionError):
        hired(broker)
    broker.popen.wait(10)
    broker.popen.stdout.close()
    broker.start()
    assert [offset for offset, _ in hired(broker).take()] == [0, 1, 2, 3, 4]


def test_killed_while_a_group_ends(broker):
    fill(broker, 5)
    broker.end()
    broker.environment = {VARIABLE: failpoints.SHARE_ENDED}
    broker.start()
    broker.environment = {}
    worker = hired(broker)
    worker.take()
    assert worker.acknowledge((0, 4, ACCEPT)) == 0
    worker.leave()
    with contextlib.suppress(ConnectionError), Wire(broker.address) as wire:
        wire.ask(DeleteGroupsRequest([GROUP]))
    broker.popen.wait(10)
    broker.popen.stdout.close()
    broker.start()
    assert [offset for offset, _ in hired(broker).take()] == [0, 1, 2, 3, 4]  # it is another group


def test_librdkafkas_consumers_over_kills(broker):
    """Three of them, which release some: each message is acknowledged, and none comes again after that was answered."""
    count, lock, stop = 2000, threading.Lock(), threading.Event()
    fill(broker, count)
    done: set[int] = set()
    unsure: set[int] = set()  # what was said of them may have been stored, and the answer lost
    again: list[int] = []
    failed: list[BaseException] = []

    def work() -> None:
        settings = {"bootstrap.servers": broker.address, "group.id": GROUP, "share.acknowledgement.mode": "explicit"}
        consumer = ShareConsumer({**settings, "reconnect.backoff.max.ms": 200, "max.poll.records": 50})
        try:
            consumer.subscribe([TOPIC])
            while not stop.is_set():
                with contextlib.suppress(KafkaException):
                    messages = [message for message in consumer.poll(0.5) if message.error() is None]
                    with lock:
                        again.extend(m.offset() for m in messages if m.offset() in done)
                        unsure.difference_update(m.offset() for m in messages)
                    taken = []
                    for message in messages:
                        accept = message.offset() % 11 or (message.delivery_count() or 1) > 1
                        kind = AcknowledgeType.ACCEPT if accept else AcknowledgeType.RELEASE
                        consumer.acknowledge(message, kind)
                        taken += [message.offset()] if accept else []
                    with lock:
                        unsure.update(taken)
                    results = consumer.commit_sync(10) or {}
                    if all(error is None for error in results.values()):
                        with lock:
                            unsure.difference_update(taken)
                            done.update(taken)
        except BaseException as e:
            failed.append(e)
        finally:
            with contextlib.suppress(KafkaException):
                consumer.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for part in (4, 2):
        _until(lambda part=part: failed or len(done) > count // part)
        kill(broker)
    _until(lambda: failed or lag(broker) == 0)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failed and not again
    assert done | unsure == set(range(count))
    assert len(unsure) <= 2 * 3 * 50  # at most what was under way in each kill


def lag(broker):
    with Wire(broker.address) as wire:
        asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(GROUP, None)])
        [group] = wire.ask(asked).groups
    return sum(part.lag for topic in group.topics for part in topic.partitions)


def _until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        time.sleep(0.02)
