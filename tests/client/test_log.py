"""Topics, lag and reading on a real log: ours, or Apache Kafka."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer

from millstream.app import names
from millstream.client import admin, connect
from millstream.client.groups import commit, committed, groups
from millstream.client.producer import producer
from millstream.client.tail import Message, last, newest, tail
from millstream.client.wait import wait_for_kafka
from millstream.monitor.lag import all_lags, group_lag, lags
from millstream.settings import Kafka, MillstreamError
from tests.brokers import fresh, running_broker, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def topic(kafka):
    name = fresh("topic")
    admin.ensure_topic(kafka, name, 3, {"retention.ms": "86400000"})
    return name


@pytest.fixture
def filled(kafka, topic):
    """A topic with 30 messages, ten in each partition."""
    client = producer(kafka)
    for n in range(30):
        client.produce(topic, key=f"k{n}", value=f"v{n}", partition=n % 3, headers=[("origin", b"x"), ("empty", None)])
    assert client.flush(30) == 0
    return topic


def test_waiting_for_a_log(kafka):
    wait_for_kafka(kafka, 30)
    with pytest.raises(
        MillstreamError, match=r"no Kafka broker answers at 127.0.0.1:1; start one with `millstream broker`"
    ):
        wait_for_kafka(Kafka("127.0.0.1:1"), 0.3)


def test_topics_are_made_once(kafka):
    names = [fresh("a"), fresh("b")]
    assert admin.ensure_topics(kafka, [(n, 2, {}) for n in names]) == names
    assert admin.ensure_topics(kafka, [(n, 5, {"cleanup.policy": "compact"}) for n in names]) == []
    facts = admin.describe_topics(kafka, names)
    assert [(f.name, f.partitions, f.config, f.events) for f in facts] == [(n, 2, {}, 0) for n in sorted(names)]


def test_our_own_topics_get_their_settings(kafka):
    admin.ensure_topic(kafka, names.STATUS)
    [facts] = admin.describe_topics(kafka, [names.STATUS])
    assert facts.partitions == 1
    assert facts.config == admin.INTERNAL[names.STATUS]


@pytest.mark.parametrize(
    ("name", "config"), [("a b", {}), ("fine", {"nonsense": "1"}), ("fine", {"retention.ms": "x"})]
)
def test_a_refused_topic_says_why(kafka, name, config):
    with pytest.raises(MillstreamError, match=f"topic '{name}' cannot be created: "):
        admin.ensure_topic(kafka, name, 1, config)


def test_offsets(kafka, filled):
    assert admin.start_offsets(kafka, [filled]) == {(filled, p): 0 for p in range(3)}
    assert admin.end_offsets(kafka, [filled]) == {(filled, p): 10 for p in range(3)}
    [facts] = admin.describe_topics(kafka, [filled])
    assert facts.config == {"retention.ms": "86400000"}
    assert facts.events == 30


def test_an_unknown_topic_is_named_and_not_made(kafka):
    for ask in (admin.end_offsets, admin.start_offsets, admin.describe_topics):
        with pytest.raises(MillstreamError, match="there is no topic 'nowhere'"):
            ask(kafka, ["nowhere"])
    with pytest.raises(MillstreamError, match="there is no topic 'nowhere'"):
        next(tail(kafka, "nowhere"))
    assert "nowhere" not in admin.topic_names(kafka)


def test_a_deleted_topic_is_gone(kafka, topic):
    admin.delete_topic(kafka, topic)
    assert topic not in admin.topic_names(kafka)
    with pytest.raises(MillstreamError, match="there is no topic"):
        admin.delete_topic(kafka, topic)


def test_one_admin_client_per_log(kafka):
    assert connect.admin(kafka) is connect.admin(Kafka(kafka.bootstrap))
    for port in range(connect.MAX_ADMIN_CLIENTS):
        connect.admin(Kafka(f"127.0.0.1:{port + 1}"))
    assert len(connect._clients) == connect.MAX_ADMIN_CLIENTS


def test_the_lag_of_a_group_without_members(kafka, filled):
    group = fresh("app.query")
    assert group_lag(kafka, group) == []
    commit(kafka, group, {(filled, 0): 4, (filled, 1): 10})
    commit(kafka, group, {(filled, 0): 5, (filled, 2): 99})
    assert [(one.partition, one.committed, one.end, one.lag) for one in group_lag(kafka, group)] == [
        (0, 5, 10, 5),
        (1, 10, 10, 0),
        (2, 99, 10, 0),
    ]
    assert [one for one in all_lags(kafka) if one.group == group] == group_lag(kafka, group)
    other = fresh("app.other")
    commit(kafka, other, {(filled, 1): 3})
    some = lags(kafka, [group, other, "nobody"])
    assert some == sorted(
        [*group_lag(kafka, group), *group_lag(kafka, other)], key=lambda one: (one.group, one.partition)
    )
    assert lags(kafka, []) == []
    assert [(g.state, g.type) for g in groups(kafka) if g.name == group] == [("empty", "classic")]
    commit(kafka, group, {})


def test_lag_forgets_topics_that_are_gone(kafka, filled):
    group = fresh("app.query")
    commit(kafka, group, {(filled, 0): 4})
    admin.delete_topic(kafka, filled)
    assert group_lag(kafka, group) == []


def test_a_group_with_members_keeps_its_offsets(kafka, filled):
    group = fresh("live")
    consumer = Consumer(kafka.client(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False))
    consumer.subscribe([filled])
    wait_until(lambda: consumer.poll(0.1), "the consumer reads")
    with pytest.raises(MillstreamError, match="has active members, so its offsets cannot be set"):
        commit(kafka, group, {(filled, 0): 1})
    consumer.commit(asynchronous=False)
    assert {g.state for g in groups(kafka) if g.name == group} == {"stable"}
    before = group_lag(kafka, group)
    assert sum(one.lag for one in before) == sum(10 - one.committed for one in before) > 0
    consumer.close()
    commit(kafka, group, {(filled, 0): 7})
    assert committed(kafka, group)[filled, 0].offset == 7


def test_reading_from_the_start(kafka, filled):
    messages = list(tail(kafka, filled, "earliest", follow=False))
    assert sorted(m.value for m in messages) == sorted(b"v%d" % n for n in range(30))
    assert all([m.offset for m in messages if m.partition == p] == list(range(10)) for p in range(3))
    assert messages[0].headers == (("origin", b"x"), ("empty", None))
    assert abs(messages[0].timestamp / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("latest", 0),
        (8, 6),
        (-3, 9),
        (-99, 30),
        (99, 0),
        ({0: 9, 1: 5}, 16),
        (datetime.now(UTC) - timedelta(hours=1), 30),
        (datetime.now(UTC) + timedelta(hours=1), 0),
    ],
)
def test_reading_from_anywhere(kafka, filled, start, expected):
    assert len(list(tail(kafka, filled, start, follow=False))) == expected


def test_reading_one_partition_or_a_few(kafka, filled):
    assert {m.partition for m in tail(kafka, filled, "earliest", follow=False, partition=1)} == {1}
    assert len(list(tail(kafka, filled, "earliest", limit=4))) == 4
    assert list(tail(kafka, filled, "earliest", limit=0)) == []
    with pytest.raises(MillstreamError, match="partitions 0 to 2, not 7"):
        next(tail(kafka, filled, "earliest", partition=7))
    with pytest.raises(MillstreamError, match="needs a time zone"):
        next(tail(kafka, filled, datetime(2013, 1, 1)))
    with pytest.raises(MillstreamError, match="to start from"):
        next(tail(kafka, filled, "somewhere"))


def message(partition, offset, timestamp):
    return Message("t", partition, offset, timestamp, None, None)


def test_the_newest_of_several_partitions():
    """Times decide between partitions; within one, the log's order stands, whatever the producers' clocks say."""
    one = [message(0, 0, 100), message(0, 1, 90), message(0, 2, 130)]
    two = [message(1, 7, 95), message(1, 8, 120)]
    found = [(m.partition, m.offset) for m in newest([one, two], 4)]
    assert found == [(0, 0), (0, 1), (1, 8), (0, 2)]
    assert newest([one, two], 0) == []
    assert len(newest([one, two], 99)) == 5


def test_the_last_of_a_topic(kafka, filled):
    messages, ends = last(kafka, filled, 5)
    assert ends == {0: 10, 1: 10, 2: 10}
    everything = newest([list(tail(kafka, filled, "earliest", follow=False, partition=p)) for p in range(3)], 30)
    assert messages == everything[-5:]
    assert len(last(kafka, filled, 99)[0]) == 30
    assert [m.offset for m in last(kafka, filled, 2, partition=1)[0]] == [8, 9]
    assert last(kafka, filled, 0)[0] == []
    with pytest.raises(MillstreamError, match="at most the last 10,000"):
        last(kafka, filled, 10_001)


def test_offsets_without_a_message_do_not_count_as_the_last(kafka, topic):
    client = producer(kafka, transactional_id=fresh("writer"))
    client.init_transactions(30)
    for n in range(3):
        client.begin_transaction()
        client.produce(topic, value=str(n), partition=0)
        client.commit_transaction(30)
    assert [m.value for m in last(kafka, topic, 2)[0]] == [b"1", b"2"]


def test_following(kafka, filled):
    reader = tail(kafka, filled, -1)
    assert sorted(next(reader).value for _ in range(3)) == [b"v27", b"v28", b"v29"]
    client = producer(kafka)
    client.produce(filled, value="fresh")
    client.flush(30)
    assert next(reader).value == b"fresh"
    reader.close()


def test_reading_to_an_end_that_is_no_message(kafka, topic):
    """The last offsets of a transaction are its marker: a reader that waits for a message there would wait for ever."""
    client = producer(kafka, transactional_id=fresh("writer"))
    try:
        client.init_transactions(30)
    except Exception as error:
        pytest.skip(f"no transactions here yet: {error}")
    client.begin_transaction()
    client.produce(topic, value="one", partition=0)
    client.commit_transaction(30)
    assert [m.value for m in tail(kafka, topic, "earliest", follow=False)] == [b"one"]


def test_equal_keys_go_where_java_clients_put_them(kafka, topic):
    """Values of Kafka's own murmur2 test, modulo three partitions."""
    client = producer(kafka)
    for key in ("21", "foobar", "a-little-bit-long-string", "abc"):
        client.produce(topic, key=key)
    client.flush(30)
    found = {m.key.decode(): m.partition for m in tail(kafka, topic, "earliest", follow=False)}
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    assert found == {key: (value & 0x7FFFFFFF) % 3 for key, value in hashes.items()}
