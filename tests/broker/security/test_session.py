"""Sessions that end: renewed on the same connection, by the same user, in time or late; others are cut off (KIP-368)."""

import re
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ScramMechanism, UserScramCredentialDeletion

from millstream.broker.security.session import Session
from millstream.protocol import errors
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.security.test_listener import PASSWORD, USERS, plain
from tests.broker.serving import Process
from tests.broker.wire import Wire

LIFETIME = 1.5  # seconds; a renewal may come once a second


@pytest.fixture
def guarded(tmp_path):
    process = Process(
        tmp_path / "data",
        f"connections.max.reauth.ms={round(LIFETIME * 1000)}",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "connection.failed.authentication.delay.ms=0",
    )
    process.address = "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    process.more = [*USERS, "--verbose"]
    process.environment = {"ALICE": PASSWORD}
    with process:
        yield process


def signed_in(guarded, version=2):
    wire = Wire(guarded.listeners["SASL_PLAINTEXT"])
    answer = plain(wire, "alice", PASSWORD, version)
    assert answer.error_code == 0
    assert answer.session_lifetime_ms == (round(LIFETIME * 1000) if version else 0)
    return wire


def heard(wire):
    """Whether an ordinary request is answered."""
    try:
        return bool(wire.ask(MetadataRequest(None), 12).brokers)
    except ConnectionError:
        return False


def test_a_session_as_values():
    session = Session("PLAIN", "User:a", 10.0, None)
    assert not session.ended(10.0)
    assert session.ended(10.001)
    assert session.may_renew(0)
    assert session.may_renew(1000)
    renewed = Session("PLAIN", "User:a", 10.0, 5.0)
    assert [renewed.may_renew(at) for at in (5.0, 5.9, 6.0, 20.0)] == [False, False, True, True]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_who_does_not_renew_is_cut_off_at_the_next_request(guarded, version):
    """Whether the client knew how long it had (SaslAuthenticate 1) or not."""
    with signed_in(guarded, version) as wire:
        assert heard(wire)
        time.sleep(LIFETIME + 0.1)
        assert not heard(wire)
    assert "too old (connections.max.reauth.ms)" in guarded.log.read_text()


@pytest.mark.parametrize("late", [False, True])
def test_renewed_in_time_or_late_the_connection_goes_on(guarded, late):
    """Kafka takes a late SaslHandshake, too: KafkaChannel.maybeBeginServerReauthentication comes before the check."""
    with signed_in(guarded) as wire:
        for _ in range(3):
            time.sleep(LIFETIME + 0.2 if late else 1.1)
            answer = plain(wire, "alice", PASSWORD)
            assert answer.error_code == 0
            assert answer.session_lifetime_ms == round(LIFETIME * 1000)
            assert heard(wire)


def test_a_renewal_within_a_second_of_the_last_is_an_ordinary_request_in_the_wrong_place(guarded):
    with signed_in(guarded) as wire:
        assert plain(wire, "alice", PASSWORD).error_code == 0
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == errors.ILLEGAL_SASL_STATE
        assert heard(wire)


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("bob", PASSWORD, "PLAIN"), ("alice", "wrong", "PLAIN"), ("alice", PASSWORD, "SCRAM-SHA-256")],
)
def test_only_the_same_user_renews_by_the_same_mechanism(guarded, user, password, mechanism):
    with signed_in(guarded) as wire:
        if mechanism == "PLAIN":
            answer = plain(wire, user, password)
        else:
            assert wire.ask(SaslHandshakeRequest(mechanism), 1).error_code == 0
            answer = wire.ask(SaslAuthenticateRequest(b"n,,n=alice,r=abc"), 2)
        assert answer.error_code == errors.SASL_AUTHENTICATION_FAILED
        assert "re-authentication" in answer.error_message
        assert wire.closed()


@pytest.mark.parametrize("request_", [MetadataRequest(None), ApiVersionsRequest("a", "1")])
def test_while_it_renews_nothing_else_may_come(guarded, request_):
    with signed_in(guarded) as wire:
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        wire.send(request_, 3)
        assert wire.closed()


def test_bare_tokens_renew_too(guarded):
    with signed_in(guarded) as wire:
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
        token = b"\0alice\0" + PASSWORD.encode()
        wire.socket.sendall(len(token).to_bytes(4, "big") + token)
        assert wire.exactly(4) == b"\0\0\0\0"
        time.sleep(LIFETIME - 0.3)
        assert heard(wire)


def test_requests_under_way_are_answered_before_the_renewal(guarded):
    with signed_in(guarded) as wire:
        wire.ask(MetadataRequest([]), 12)
        poll = FetchRequest(max_wait_ms=800, min_bytes=1, topics=[FetchTopic("none", partitions=[FetchPartition(0)])])
        with Wire(guarded.listeners["PLAINTEXT"]) as other:
            other.ask(_create("none"), 7)
        start = time.monotonic()
        wire.send(poll, 12)
        wire.send(SaslHandshakeRequest("PLAIN"), 1)
        assert wire.receive(poll, 12).responses is not None
        assert time.monotonic() - start > 0.7
        assert wire.receive(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        answer = wire.ask(SaslAuthenticateRequest(b"\0alice\0" + PASSWORD.encode()), 2)
        assert answer.error_code == 0
        assert heard(wire)


def _create(name):
    from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest

    return CreateTopicsRequest([CreatableTopic(name, 1, 1)], 5000)


def test_a_user_that_is_gone_ends_with_the_session(guarded):
    admin = AdminClient({"bootstrap.servers": guarded.listeners["PLAINTEXT"]})
    with signed_in(guarded) as wire:
        gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)])
        assert gone["alice"].result() is None
        assert heard(wire)
        assert plain(wire, "alice", PASSWORD).error_code == errors.SASL_AUTHENTICATION_FAILED
        assert wire.closed()


@pytest.mark.parametrize(
    ("mechanism", "user"), [("SCRAM-SHA-256", "alice"), ("SCRAM-SHA-512", "bob"), ("PLAIN", "bob")]
)
def test_librdkafka_renews_and_nobody_notices(guarded, mechanism, user):
    troubles = []
    made = {
        "bootstrap.servers": guarded.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "error_cb": lambda error: troubles.append(str(error)),
    }
    producer = Producer({**made, "enable.idempotence": True})
    consumer = Consumer({**made, "group.id": "g", "auto.offset.reset": "earliest"})
    delivered = threading.Event()
    failed = []

    def report(error, _):
        if error is not None:
            failed.append(str(error))
        delivered.set()

    consumer.subscribe(["t"])
    got, sent = [], 0
    until = time.monotonic() + 4 * LIFETIME
    while time.monotonic() < until:
        producer.produce("t", b"%d" % sent, on_delivery=report)
        sent += 1
        producer.poll(0)
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            got.append(message.value())
    assert producer.flush(20) == 0
    until = time.monotonic() + 20
    while len(got) < sent and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            got.append(message.value())
    consumer.close()
    assert got == [b"%d" % i for i in range(sent)]
    assert not failed
    assert not troubles
    log = guarded.log.read_text()
    peers = re.findall(rf"(\S+) is User:{user} \({mechanism}\)", log)
    assert max(peers.count(peer) for peer in peers) >= 3  # on one connection again and again
    assert "too old" not in log
