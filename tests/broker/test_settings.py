"""Settings: Kafka's names, defaults, coarse and fine names, and what is refused with which advice."""

import socket

import pytest

from millstream.broker.security.listeners import open_listeners
from millstream.broker.settings import Settings, SettingsError


def test_defaults_are_kafkas_or_explained():
    settings = Settings()
    assert settings.integer("num.partitions") == 1
    assert settings.boolean("auto.create.topics.enable")
    assert settings.seconds("group.min.session.timeout.ms") == 6
    assert settings.log_defaults == {}


def test_topic_settings_go_to_the_log_by_their_broker_names():
    settings = Settings.parse(["log.retention.hours=2", "log.segment.bytes=2000000", "message.max.bytes=5000"])
    assert settings.log_defaults == {
        "log.retention.ms": "7200000",
        "log.segment.bytes": "2000000",
        "message.max.bytes": "5000",
    }


def test_the_finest_name_wins():
    assert Settings.parse(["log.retention.hours=2", "log.retention.ms=5"]).log_defaults == {"log.retention.ms": "5"}
    assert Settings.parse(["log.retention.minutes=-1"]).log_defaults == {"log.retention.ms": "-1"}


@pytest.mark.parametrize(
    ("pair", "advice"),
    [
        ("num.partition=3", "did you mean num.partitions?"),
        ("nonsense", "expected name=value"),
        ("num.partitions=many", "expected a whole number"),
        ("num.partitions=0", "expected a number from 1 to 10000"),
        ("auto.create.topics.enable=yes", "expected true or false"),
        ("log.dirs=/x", "use --data DIR"),
        ("retention.ms=1", "it is called log.retention.ms"),
        ("default.replication.factor=3", "it can only be 1"),
        ("log.segment.bytes=small", "expected a whole number"),
        ("zzzzzzzz=1", "names are Apache Kafka's"),
    ],
)
def test_what_is_refused(pair, advice):
    with pytest.raises(SettingsError) as caught:
        Settings.parse([pair])
    assert advice in str(caught.value)


def test_what_is_accepted_has_the_buffers_that_are_set():
    [listener] = open_listeners("127.0.0.1:0", Settings({"socket.receive.buffer.bytes": "50000"}))
    with listener.sock as sock, socket.create_connection(sock.getsockname()):
        accepted, _ = sock.accept()
        with accepted:
            sizes = [accepted.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    assert [size / factor for size, factor in zip(sizes, (102_400, 50_000), strict=True)] == [
        2,
        2,
    ]  # Linux doubles them
