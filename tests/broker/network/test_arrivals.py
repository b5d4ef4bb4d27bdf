"""How fast connections may be made: by one address, and by all; and those that hang up before they are let in."""

import os
import resource
import signal
import socket
import struct
import time

import pytest
from confluent_kafka import Producer

from millstream.protocol.messages.metadata import MetadataRequest
from tests.broker.security.test_rights import limit
from tests.broker.serving import Process
from tests.broker.wire import Wire
from tests.certificates import certificate

pytestmark = pytest.mark.system
WINDOWS = ("quota.window.num=2", "quota.window.size.seconds=1")


def served(address):
    """Whether one more connection is served."""
    with Wire(address) as wire:
        try:
            return bool(wire.ask(MetadataRequest(None), 12).brokers)
        except ConnectionError:
            return False


def test_who_connects_too_often_waits_and_is_turned_away(tmp_path):
    with Process(tmp_path / "data", *WINDOWS) as broker, Wire(broker.address) as admin:
        assert limit(admin, "ip", "127.0.0.1", connection_creation_rate=5) == 0
        start = time.monotonic()
        made = [served(broker.address) for _ in range(5)]
        assert all(made)
        while made[-1]:  # one more each 0.2 s after the first five
            assert len(made) <= 5 + 5 * (time.monotonic() - start)
            made.append(served(broker.address))
        # Held until it would have been in time, so that it does not try again at once.
        assert time.monotonic() - start > (len(made) - 5) / 5 - 0.1
        assert admin.ask(MetadataRequest(None), 12).brokers  # who is in stays in
        producer = Producer({"bootstrap.servers": broker.address, "reconnect.backoff.ms": 100, "log_level": 0})
        producer.produce("t", b"v")  # a real client comes in when it is its turn
        assert producer.flush(30) == 0
        assert limit(admin, "ip", "127.0.0.1") == 0


def test_a_limit_of_another_address_and_the_default(tmp_path):
    with Process(tmp_path / "data", *WINDOWS) as broker, Wire(broker.address) as admin:
        assert limit(admin, "ip", "127.0.0.2", connection_creation_rate=1) == 0
        assert all(served(broker.address) for _ in range(20))
        assert limit(admin, "ip", None, connection_creation_rate=1) == 0
        assert sum(served(broker.address) for _ in range(5)) < 5


def test_the_broker_ends_while_sockets_are_held(tmp_path):
    with Process(tmp_path / "data", "quota.window.size.seconds=60", "quota.window.num=2") as broker:
        with Wire(broker.address) as admin:
            assert limit(admin, "ip", None, connection_creation_rate=1) == 0
        wires = [Wire(broker.address) for _ in range(62)]
        assert wires[0].ask(MetadataRequest(None), 12).brokers
        start = time.monotonic()
        assert broker.end() == 0
        assert time.monotonic() - start < 10
        assert wires[-1].closed()


def test_all_together_are_slowed_down_and_nobody_is_turned_away(tmp_path):
    with Process(tmp_path / "data", *WINDOWS, "max.connection.creation.rate=10") as broker:
        start = time.monotonic()
        assert all(served(broker.address) for _ in range(40))
        assert time.monotonic() - start >= 1.5  # 10 at once, then about 10 a second, in Kafka's two windows


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_connections_that_are_gone_before_they_are_accepted(tmp_path, protocol):
    process = Process(tmp_path / "data", f"ssl.keystore.location={certificate(tmp_path, 'localhost')}")
    process.address = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
    with process:
        host, port = process.listeners[protocol].split(":")
        process.popen.send_signal(signal.SIGSTOP)
        try:
            for _ in range(20):
                sock = socket.create_connection((host, int(port)), timeout=10)
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()  # at once, with a reset
        finally:
            process.popen.send_signal(signal.SIGCONT)
        with Wire(process.listeners["PLAINTEXT"]) as wire:
            assert wire.ask(MetadataRequest(None), 12).brokers
        assert "Traceback" not in process.log.read_text()


def test_when_descriptors_run_out_who_is_in_is_served_and_the_others_come_later(tmp_path):
    with Process(tmp_path / "data") as broker, Wire(broker.address) as early:
        assert early.ask(MetadataRequest(None), 12).brokers
        pid = broker.popen.pid
        most = len(os.listdir(f"/proc/{pid}/fd")) + 5
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        wires = [Wire(broker.address) for _ in range(12)]  # the kernel takes them
        try:
            for wire in wires:
                wire.send(MetadataRequest(None), 12)
            for wire in wires[:5]:
                assert wire.receive(MetadataRequest(None), 12).brokers
            until = time.monotonic() + 20
            while "cannot accept connections: [Errno 24]" not in broker.log.read_text():
                assert early.ask(MetadataRequest(None), 12).brokers
                assert time.monotonic() < until
            for wire in wires[:5]:
                wire.socket.close()
            for wire in wires[5:10]:
                assert wire.receive(MetadataRequest(None), 12).brokers
            assert early.ask(MetadataRequest(None), 12).brokers
        finally:
            for wire in wires:
                wire.socket.close()
