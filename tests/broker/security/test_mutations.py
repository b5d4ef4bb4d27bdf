"""How many partitions a client may create and delete: strict and forgiving versions of the requests, on a running broker."""

import time

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from millstream.protocol import errors
from millstream.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.security.test_rights import limit
from tests.broker.serving import Process
from tests.broker.wire import Wire

pytestmark = pytest.mark.system
QUOTA = errors.THROTTLING_QUOTA_EXCEEDED


@pytest.fixture
def limited(tmp_path):
    """A broker on which client "c" may create 10 partitions, and then 5 a second."""
    settings = ("controller.quota.window.num=2", "controller.quota.window.size.seconds=1", "num.partitions=1")
    with Process(tmp_path / "data", *settings) as process, Wire(process.address, "admin") as admin:
        assert limit(admin, "client-id", "c", controller_mutation_rate=5) == 0
        yield process


def create(wire, version, *wanted, validate_only=False):
    """Names and partitions; the answer, and the error of each."""
    request = CreateTopicsRequest([CreatableTopic(name, count, 1) for name, count in wanted], 5000, validate_only)
    answer = wire.ask(request, version)
    return answer, [topic.error_code for topic in answer.topics]


def exists(broker, name):
    with Wire(broker.address, "admin") as wire:
        topics = wire.ask(MetadataRequest([MetadataRequestTopic(bytes(16), name)], False), 12).topics
        return topics[0].error_code == 0 and len(topics[0].partitions)


def test_strictly_single_topics_are_refused_and_the_connection_waits(limited):
    with Wire(limited.address, "c") as wire, Wire(limited.address, "d") as other:
        answer, codes = create(wire, 7, ("a", 6), ("b", 9), ("late", 1), ("later", 1))
        start = time.monotonic()
        assert codes == [0, 0, QUOTA, QUOTA]  # b was too much, but nothing was owed before it
        assert 800 <= answer.throttle_time_ms <= 1000  # 5 too many, 5 a second
        assert "controller_mutation_rate" in answer.topics[2].error_message
        assert create(other, 7, ("free", 100))[1] == [0]
        assert wire.ask(MetadataRequest(None), 12).topics  # is heard only then
        assert time.monotonic() - start >= answer.throttle_time_ms / 1000 - 0.02
        answer, codes = create(wire, 7, ("late", 1))
        assert (codes, answer.throttle_time_ms) == ([0], 0)
    assert exists(limited, "a") == 6
    assert exists(limited, "b") == 9
    assert not exists(limited, "later")


def test_clients_of_earlier_versions_get_what_they_ask_for_and_wait(limited):
    with Wire(limited.address, "c") as wire:
        start = time.monotonic()
        answer, codes = create(wire, 5, ("a", 10), ("b", 5))
        assert codes == [0, 0]
        assert 900 <= answer.throttle_time_ms <= 1000
        answer, codes = create(wire, 5, ("c", 1))
        assert time.monotonic() - start >= 0.9
        assert codes == [0]


def test_deleting_growing_and_looking_count_too(limited):
    with Wire(limited.address, "admin") as admin, Wire(limited.address, "c") as wire:
        create(admin, 7, ("a", 15), ("b", 1), ("c", 1))
        answer = wire.ask(DeleteTopicsRequest([DeleteTopicState("a"), DeleteTopicState("b")], [], 5000), 6)
        assert [each.error_code for each in answer.responses] == [0, QUOTA]
        assert answer.throttle_time_ms > 0
        assert exists(limited, "b") == 1
        grow = [CreatePartitionsTopic("b", 11, None), CreatePartitionsTopic("c", 2, None)]
        answer = wire.ask(CreatePartitionsRequest(grow, 5000, False), 3)
        assert [each.error_code for each in answer.results] == [
            0,
            QUOTA,
        ]  # the wait before is over, so 10 more may be made
        assert exists(limited, "b") == 11
        assert exists(limited, "c") == 1
        # Kafka counts what is only validated, too (ReplicationControlManager.createTopic).
        assert create(wire, 7, ("x", 20), validate_only=True)[1] == [0]
        assert create(wire, 7, ("x", 1), validate_only=True)[1] == [QUOTA]


def test_a_topic_that_is_made_by_asking_for_it_comes_when_there_is_room(limited):
    with Wire(limited.address, "c") as wire:
        create(wire, 5, ("a", 11))  # 1 too many; the answer is waited for
        create(wire, 6, ("b", 11))
        answer = wire.ask(MetadataRequest([MetadataRequestTopic(bytes(16), "asked")]), 12)
        assert answer.topics[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION  # clients ask again
        until = time.monotonic() + 10
        while wire.ask(MetadataRequest([MetadataRequestTopic(bytes(16), "asked")]), 12).topics[0].error_code:
            assert time.monotonic() < until


def test_librdkafka(limited):
    admin = AdminClient({"bootstrap.servers": limited.address, "client.id": "c"})
    start = time.monotonic()
    for future in admin.create_topics([NewTopic(f"t{i}", 5) for i in range(3)]).values():
        assert future.result() is None
    for future in admin.create_partitions([NewPartitions("t0", 6)]).values():
        assert future.result() is None
    for future in admin.delete_topics(["t1", "t2"]).values():
        assert future.result() is None
    assert admin.list_topics(timeout=10).topics.keys() >= {"t0"}
    assert time.monotonic() - start >= 2  # 26 partitions, 10 at once and 5 a second
