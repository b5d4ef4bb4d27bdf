"""TLS and SASL on the listener: who comes in, who does not, and how the door is kept."""

import base64
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from millstream.protocol import errors
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.serving import Process
from tests.broker.wire import Wire
from tests.certificates import certificate

pytestmark = pytest.mark.system
PASSWORD = "s3cret,=with"
USERS = (
    "--add-scram=SCRAM-SHA-256=[name=alice,password=env:ALICE]",
    "--add-scram=SCRAM-SHA-512=[name=bob,password=env:ALICE]",
)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A broker with every kind of listener."""
    folder = tmp_path_factory.mktemp("secure")
    pem, client = certificate(folder, "localhost"), certificate(folder, "client")
    settings = (
        f"ssl.keystore.location={pem}",
        f"ssl.truststore.location={folder / 'client.crt'}",
        "ssl.client.auth=requested",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "connection.failed.authentication.delay.ms=50",
    )
    process = Process(folder / "data", *settings)
    process.address = ",".join(f"{p}://127.0.0.1:0" for p in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
    process.more = list(USERS)
    process.environment = {"ALICE": PASSWORD}
    with process:
        process.pem, process.client, process.crt = pem, client, folder / "localhost.crt"
        yield process


def options(secure, protocol, mechanism="SCRAM-SHA-256", user="alice", password=PASSWORD):
    made = {"bootstrap.servers": secure.listeners[protocol], "security.protocol": protocol, "log_level": 0}
    if protocol.startswith("SASL"):
        made |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    if protocol.endswith("SSL"):
        made |= {"ssl.ca.location": str(secure.crt)}
    return made


@pytest.mark.parametrize(
    ("protocol", "mechanism", "user"),
    [
        ("PLAINTEXT", "", ""),
        ("SSL", "", ""),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "alice"),
        ("SASL_SSL", "SCRAM-SHA-512", "bob"),
        ("SASL_SSL", "PLAIN", "alice"),
        ("SASL_SSL", "PLAIN", "bob"),
    ],
)
def test_a_client_produces_and_consumes(secure, protocol, mechanism, user):
    made = options(secure, protocol, mechanism, user)
    topic = f"t-{protocol}-{mechanism}-{user}"
    producer = Producer({**made, "linger.ms": 5, "enable.idempotence": True, "message.max.bytes": 5_000_000})
    sent = [bytes([i]) * size for i, size in enumerate([10, 3_000_000, 0, 70_000] + [1000] * 200)]
    for value in sent[:4]:  # large ones too, through a batch and a file piece larger than any buffer
        producer.produce(topic, value[:900_000])
    for value in sent[4:]:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = Consumer({**made, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got = []
    until = time.monotonic() + 20
    while len(got) < len(sent) and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            got.append(message.value())
    consumer.close()
    assert sorted(got) == sorted(value[:900_000] for value in sent)


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("SCRAM-SHA-256", "alice", "wrong"),
        ("SCRAM-SHA-256", "nobody", PASSWORD),
        ("SCRAM-SHA-512", "alice", PASSWORD),  # has keys for the other mechanism only
        ("PLAIN", "alice", "wrong"),
        ("PLAIN", "nobody", PASSWORD),
        ("OAUTHBEARER", "alice", PASSWORD),
    ],
)
def test_who_is_not_known_does_not_come_in(secure, mechanism, user, password):
    failed = threading.Event()
    reasons = []

    def tell(error):
        reasons.append(str(error))
        failed.set()

    made = {**options(secure, "SASL_SSL", mechanism, user, password), "error_cb": tell}
    if mechanism == "OAUTHBEARER":
        made.pop("sasl.username")
        made.pop("sasl.password")
        made["oauth_cb"] = lambda _: ("token", time.time() + 100)
    admin = AdminClient(made)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    admin.poll(0)
    assert any("uthentication" in r or "nsupported" in r for r in reasons), reasons


def plain(wire, user, password, version=2):
    assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    return wire.ask(SaslAuthenticateRequest(b"\0" + user.encode() + b"\0" + password.encode()), version)


def test_the_order_of_requests_is_kafkas(secure):
    at = secure.listeners["SASL_PLAINTEXT"]
    with Wire(at) as wire:
        assert wire.ask(ApiVersionsRequest("test", "1"), 4).error_code == 0
        assert plain(wire, "alice", PASSWORD).error_code == 0
        assert wire.ask(MetadataRequest(None), 12).brokers
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == errors.ILLEGAL_SASL_STATE
        assert wire.ask(SaslAuthenticateRequest(b""), 1).error_code == errors.ILLEGAL_SASL_STATE
        assert wire.ask(MetadataRequest(None), 12).brokers
    with Wire(at) as wire:  # nothing else before
        wire.send(MetadataRequest(None), 12)
        assert wire.closed()
    with Wire(at) as wire:  # no token before the mechanism
        wire.send(SaslAuthenticateRequest(b"\0a\0b"), 2)
        assert wire.closed()
    with Wire(at) as wire:
        answer = wire.ask(SaslHandshakeRequest("GSSAPI"), 1)
        assert answer.error_code == errors.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
        assert wire.closed()
    with Wire(at) as wire:  # refused: late, with no reason, and the end
        start = time.monotonic()
        answer = plain(wire, "alice", "wrong")
        assert answer.error_code == errors.SASL_AUTHENTICATION_FAILED
        assert "invalid credentials" in answer.error_message
        assert time.monotonic() - start >= 0.05
        assert wire.closed()
    with Wire(at) as wire:  # requests sent behind a failing authentication are not served
        wire.ask(SaslHandshakeRequest("SCRAM-SHA-256"), 1)
        wire.send(SaslAuthenticateRequest(b"garbage"), 2)
        wire.send(MetadataRequest(None), 12)
        assert wire.closed()
    with Wire(secure.listeners["PLAINTEXT"]) as wire:
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == errors.ILLEGAL_SASL_STATE


@pytest.mark.parametrize(("password", "right"), [(PASSWORD, True), ("wrong", False)])
def test_bare_tokens_after_version_0_of_the_handshake(secure, password, right):
    with Wire(secure.listeners["SASL_PLAINTEXT"]) as wire:
        assert wire.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
        token = b"\0alice\0" + password.encode()
        wire.socket.sendall(struct.pack(">i", len(token)) + token)
        if right:
            assert wire.exactly(4) == b"\0\0\0\0"
            assert wire.ask(MetadataRequest(None), 12).brokers
        else:
            assert wire.closed()


@pytest.mark.parametrize("size", [-1, 600_000, 0x16030102])
def test_frames_before_authentication_are_bounded(secure, size):
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        host, port = secure.listeners[protocol].split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            if protocol == "SASL_SSL":
                context = ssl.create_default_context(cafile=str(secure.crt))
                sock = context.wrap_socket(sock, server_hostname="localhost")
            sock.sendall(struct.pack(">i", size) + b"\0" * 10)
            assert sock.recv(1) == b""


def test_plain_bytes_on_a_tls_port_and_tls_bytes_on_a_plain_one(secure):
    with Wire(secure.listeners["SSL"]) as wire:
        wire.send(MetadataRequest(None), 12)
        try:
            data = wire.exactly(1)
        except ConnectionError:
            data = b""
        assert data in (b"", b"\x15")  # nothing, or a TLS alert
    host, port = secure.listeners["PLAINTEXT"].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock, pytest.raises((ssl.SSLError, OSError)):
        ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")


def test_a_certificate_is_a_name(secure):
    made = {
        **options(secure, "SSL"),
        "ssl.certificate.location": str(secure.client),
        "ssl.key.location": str(secure.client),
    }
    assert AdminClient(made).list_topics(timeout=10).brokers
    stranger = {**made, "ssl.certificate.location": str(secure.pem), "ssl.key.location": str(secure.pem)}
    with pytest.raises(KafkaException):  # signed by nobody whom the broker trusts
        AdminClient(stranger).list_topics(timeout=3)


def test_users_are_changed_by_kafkas_tools_and_kept_as_keys(secure):
    admin = AdminClient(options(secure, "SASL_SSL"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", info, b"carols-own")])
    assert made["carol"].result() is None
    assert (
        admin.describe_user_scram_credentials(["carol"])["carol"].result().scram_credential_infos[0].iterations == 4096
    )
    assert AdminClient(options(secure, "SASL_SSL", "SCRAM-SHA-512", "carol", "carols-own")).list_topics(timeout=10)
    kept = secure.folder / "access.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    text = kept.read_text()
    assert set(json.loads(text)["users"]) == {"alice", "bob", "carol"}
    for secret in (PASSWORD.encode(), b"carols-own"):
        assert secret.decode() not in text
        assert base64.b64encode(secret).decode() not in text
        assert secret.decode() not in secure.log.read_text()
    gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)])
    assert gone["carol"].result() is None
    with pytest.raises(KafkaException):
        AdminClient(options(secure, "SASL_SSL", "SCRAM-SHA-512", "carol", "carols-own")).list_topics(timeout=2)
    twice = admin.alter_user_scram_credentials([UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)])
    with pytest.raises(KafkaException) as e:
        twice["carol"].result()
    assert e.value.args[0].code() == errors.RESOURCE_NOT_FOUND
    with pytest.raises(KafkaException) as e:
        few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100)
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("dan", few, b"x")])["dan"].result()
    assert e.value.args[0].code() == errors.UNACCEPTABLE_CREDENTIAL


def refused(tmp_path, *arguments):
    command = [sys.executable, "-m", "millstream.broker", "--data", str(tmp_path / "data"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen=0.0.0.0:0"], "refusing to listen on 0.0.0.0 with PLAINTEXT: without TLS and authentication"),
        (["--listen=:0"], "refusing to listen on every address"),
        (["--listen=SASL_PLAINTEXT://0.0.0.0:0"], "without TLS the broker"),
        (["--listen=SSL://0.0.0.0:0", "--set=ssl.keystore.location={pem}"], "without authentication"),
        (["--listen=SASL_SSL://0.0.0.0:0"], "TLS needs ssl.keystore.location"),
        (
            [
                "--listen=SASL_SSL://0.0.0.0:0",
                "--set=ssl.keystore.location={pem}",
                "--set=sasl.enabled.mechanisms=PLAIN",
            ],
            "without SCRAM",
        ),
        (
            ["--listen=SASL_SSL://0.0.0.0:0", "--set=ssl.keystore.location={pem}"],
            "set advertised.listeners=SASL_SSL://",
        ),
        (["--listen=SSL://127.0.0.1:0", "--set=ssl.keystore.location=/nowhere"], "cannot be read"),
        (["--listen=SSL://127.0.0.1:0", "--set=ssl.keystore.location={crt}"], "expected PEM with a private key"),
        (
            ["--listen=SSL://127.0.0.1:0", "--set=ssl.keystore.location={pem}", "--set=ssl.client.auth=required"],
            "ssl.client.auth needs ssl.truststore.location",
        ),
        (["--set=ssl.key.password=clear"], "expected a reference to the secret"),
        (["--listen=127.0.0.1:0,127.0.0.1:0"], "PLAINTEXT is there twice"),
        (["--listen=HTTP://127.0.0.1:0"], "HTTP is no protocol"),
        (["--listen=127.0.0.1:0", "--set=advertised.listeners=SSL://x:1"], "no such listener"),
        (["--listen=127.0.0.1:0", "--add-scram=SCRAM-SHA-256=[name=a,password=b]"], "stands on the command line"),
        (
            ["--listen=127.0.0.1:0", "--add-scram=SCRAM-SHA-256=[name=a,password=env:NOT_SET]"],
            "NOT_SET, which is not set",
        ),
        (["--listen=127.0.0.1:0", "--add-scram=SCRAM-SHA-1=[name=a,password=env:X]"], "expected SCRAM-SHA-256="),
    ],
)
def test_what_would_be_unsafe_is_refused(tmp_path, secure, arguments, text):
    filled = [a.replace("{pem}", str(secure.pem)).replace("{crt}", str(secure.crt)) for a in arguments]
    assert text in refused(tmp_path, *filled)


def test_the_override_and_the_advertised_address(tmp_path):
    process = Process(
        tmp_path / "data",
        "millstream.allow.insecure.listeners=true",
        "advertised.listeners=PLAINTEXT://example.org:1234",
    )
    process.address = "0.0.0.0:0"
    with process, Wire(process.address.replace("0.0.0.0", "127.0.0.1")) as wire:
        [broker] = wire.ask(MetadataRequest(None), 12).brokers
        assert (broker.host, broker.port) == ("example.org", 1234)


def test_connections_of_one_address_are_bounded(tmp_path):
    with (
        Process(tmp_path / "data", "max.connections.per.ip=2") as process,
        Wire(process.address) as one,
        Wire(process.address) as two,
        Wire(process.address) as three,
    ):
        assert one.ask(MetadataRequest(None), 12).brokers
        assert two.ask(MetadataRequest(None), 12).brokers
        assert three.closed()


def test_a_damaged_file_of_users_is_not_overwritten(tmp_path):
    with Process(tmp_path / "data"):
        pass
    (tmp_path / "data" / "access.json").write_text('{"version": 1, "users": ')
    text = refused(tmp_path, "--listen=127.0.0.1:0")
    assert "access.json cannot be read" in text
    assert "restore it" in text
