"""Certificates that are replaced while the broker runs."""

import os
import socket
import ssl
import time

import pytest
from confluent_kafka.admin import AdminClient

from millstream.broker.security.certificates import Certificates
from millstream.broker.security.listeners import open_listeners
from millstream.broker.settings import Settings
from millstream.protocol.messages.metadata import MetadataRequest
from tests.broker.serving import Process
from tests.broker.wire import Wire
from tests.certificates import certificate


@pytest.fixture
def files(tmp_path):
    """What the broker is given, and a later certificate of it in a folder of its own."""
    (tmp_path / "later").mkdir()
    return certificate(tmp_path, "localhost"), certificate(tmp_path / "later", "localhost")


def replace(new, old):
    """As it should be done: in one step."""
    beside = old.with_suffix(".new")
    beside.write_bytes(new.read_bytes())
    os.replace(beside, old)


def listening(pem):
    settings = Settings({"ssl.keystore.location": str(pem)})
    certificates = Certificates(settings)
    listeners = open_listeners("SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0", settings)
    for listener in listeners:
        listener.sock.close()
    return certificates, listeners


def test_files_that_have_changed_are_read_again(files):
    pem, later = files
    certificates, listeners = listening(pem)
    first = listeners[0].context
    assert not certificates.look(listeners)
    assert listeners[0].context is first
    replace(later, pem)
    assert certificates.look(listeners)
    assert listeners[0].context is not first
    assert listeners[1].context is None
    assert not certificates.look(listeners)


def test_a_file_that_cannot_be_used_leaves_what_is_there_and_is_told_once(files, caplog):
    pem, later = files
    certificates, listeners = listening(pem)
    first = listeners[0].context
    whole = later.read_bytes()
    pem.write_bytes(whole[: len(whole) // 2])  # somebody is writing it
    assert not certificates.look(listeners)
    assert not certificates.look(listeners)
    assert caplog.text.count("the old ones stay") == 1
    pem.unlink()
    assert not certificates.look(listeners)
    assert caplog.text.count("the old ones stay") == 2
    assert listeners[0].context is first
    replace(later, pem)
    assert certificates.look(listeners)
    assert listeners[0].context is not first


def test_a_link_that_leads_elsewhere_is_a_change(files, tmp_path):
    """How certificates come into containers, and from certbot."""
    link = tmp_path / "live.pem"
    link.symlink_to(files[0])
    certificates, listeners = listening(link)
    assert not certificates.look(listeners)
    link.unlink()
    link.symlink_to(files[1])
    assert certificates.look(listeners)


def shown(address):
    """The certificate that a client sees now."""
    host, port = address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=10) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(True))


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.system
def test_a_running_broker_shows_its_new_certificate_and_keeps_its_connections(files, tmp_path):
    pem, later = files
    process = Process(tmp_path / "data", f"ssl.keystore.location={pem}")
    process.address = "SSL://127.0.0.1:0"

    def admin(authority):
        made = {"bootstrap.servers": process.address, "security.protocol": "SSL", "ssl.ca.location": str(authority)}
        return AdminClient({**made, "log_level": 0})

    with process:
        old = admin(tmp_path / "localhost.crt")
        assert old.list_topics(timeout=10).brokers
        before = shown(process.address)
        pem.write_text("nonsense")
        until(lambda: "new certificates cannot be used" in process.log.read_text())
        assert shown(process.address) == before
        replace(later, pem)
        until(lambda: shown(process.address) != before)
        assert shown(process.address).strip() in later.read_text()
        assert old.list_topics(timeout=10).brokers  # on the connection that it has
        assert admin(tmp_path / "later" / "localhost.crt").list_topics(timeout=10).brokers


@pytest.mark.system
def test_whom_a_running_broker_trusts_changes_too(files, tmp_path):
    pem, _ = files
    (tmp_path / "c").mkdir()
    one, two = certificate(tmp_path / "c", "one"), certificate(tmp_path / "c", "two")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes((tmp_path / "c" / "one.crt").read_bytes())
    settings = (f"ssl.keystore.location={pem}", f"ssl.truststore.location={trusted}", "ssl.client.auth=required")
    process = Process(tmp_path / "data", *settings)
    process.address = "SSL://127.0.0.1:0"

    def comes_in(own):
        context = ssl.create_default_context(cafile=tmp_path / "localhost.crt")
        context.load_cert_chain(own)
        wire = Wire(process.address)
        try:
            wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
            return bool(wire.ask(MetadataRequest(None), 12).brokers)
        except (OSError, ConnectionError):
            return False
        finally:
            wire.socket.close()

    with process:
        assert comes_in(one)
        assert not comes_in(two)
        (tmp_path / "t").write_bytes((tmp_path / "c" / "two.crt").read_bytes())
        os.replace(tmp_path / "t", trusted)
        until(lambda: comes_in(two))
        assert not comes_in(one)
