"""Where the broker listens, by which protocol, and what it calls itself there; refuses what would be unsafe.

Kafka's form: `PLAINTEXT://127.0.0.1:9092,SASL_SSL://0.0.0.0:9093`; HOST:PORT alone is PLAINTEXT. A protocol names its
listener, so each is there at most once. On an address that others can reach only SASL_SSL is allowed, unless
millstream.allow.insecure.listeners says otherwise.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.broker import limits
from millstream.broker.security.scram import HASHES
from millstream.broker.security.tls import TlsError, server_context

if TYPE_CHECKING:
    from millstream.broker.settings import Settings

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OVERRIDE = "millstream.allow.insecure.listeners"
BUFFERS: Final = {
    "socket.send.buffer.bytes": socket.SO_SNDBUF,
    "socket.receive.buffer.bytes": socket.SO_RCVBUF,
}
_LISTENER = re.compile(r"(?:(?P<protocol>[A-Za-z_]+)://)?(?P<host>\[[^\]]+\]|[^\[\]:/]*):(?P<port>[0-9]{1,5})")


class CannotStart(Exception):
    """The broker cannot start; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Address:
    """One element of a list of listeners."""

    protocol: str
    host: str
    port: int


@dataclass(slots=True)
class Listener:
    """A socket that accepts clients. `host` and `port` are what clients are told."""

    protocol: str
    sock: socket.socket
    host: str
    port: int
    context: ssl.SSLContext | None = None

    @property
    def sasl(self) -> bool:
        """Whether clients must prove who they are by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def address(self) -> str:
        """HOST:PORT of the socket."""
        host, port = self.sock.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(text: str, where: str) -> list[Address]:
    """The elements of a list of listeners; `where` names the option in errors. Raises CannotStart."""
    found: list[Address] = []
    for part in text.split(","):
        match = _LISTENER.fullmatch(part.strip())
        if match is None or int(match["port"]) > 65535:
            raise CannotStart(
                f"{where} {text}: expected HOST:PORT or PROTOCOL://HOST:PORT, for example 127.0.0.1:9092 "
                "or SASL_SSL://0.0.0.0:9093"
            )
        protocol = (match["protocol"] or "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise CannotStart(f"{where} {text}: {protocol} is no protocol; they are {', '.join(PROTOCOLS)}")
        if any(protocol == other.protocol for other in found):
            raise CannotStart(f"{where} {text}: {protocol} is there twice; one listener for each protocol")
        found.append(Address(protocol, match["host"].strip("[]"), int(match["port"])))
    return found


def open_listeners(text: str, settings: Settings) -> list[Listener]:
    """Listening sockets; port 0 picks a free one. Raises CannotStart, and then leaves none open."""
    addresses = parse(text, "--listen")
    told = (
        {a.protocol: a for a in parse(settings.values["advertised.listeners"], "advertised.listeners")}
        if (settings.values["advertised.listeners"])
        else {}
    )
    for protocol in told.keys() - {a.protocol for a in addresses}:
        raise CannotStart(f"advertised.listeners names {protocol}, but --listen {text} has no such listener")
    opened: list[Listener] = []
    try:
        for address in addresses:
            context = None
            if address.protocol.endswith("SSL"):
                try:
                    context = server_context(settings)
                except TlsError as e:
                    raise CannotStart(str(e)) from None
            sock = _listen(address, settings)
            host, port = sock.getsockname()[:2]
            advertised = told.get(address.protocol)
            if advertised is not None:
                host, port = advertised.host, advertised.port or port
            opened.append(Listener(address.protocol, sock, host, port, context))
            if _unspecified(host):
                raise CannotStart(
                    f"clients cannot be told to connect to {host}: "
                    f"set advertised.listeners={address.protocol}://NAME-OF-THIS-MACHINE:{port}"
                )
    except BaseException:
        for listener in opened:
            listener.sock.close()
        raise
    return opened


def _unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_unspecified
    except ValueError:
        return False


def _check(address: Address, settings: Settings, loopback: bool) -> None:
    """Refuse to serve others without encryption and authentication."""
    if loopback or settings.boolean(OVERRIDE):
        return
    if address.protocol != "SASL_SSL":
        lacks = {"PLAINTEXT": "TLS and authentication", "SSL": "authentication", "SASL_PLAINTEXT": "TLS"}
        raise CannotStart(
            f"refusing to listen on {address.host or 'every address'} with {address.protocol}: without "
            f"{lacks[address.protocol]} the broker serves this machine only; use 127.0.0.1, or SASL_SSL:// with "
            f"ssl.keystore.location, or set {OVERRIDE}=true if a network that you trust is all that can reach it"
        )
    mechanisms = settings.names("sasl.enabled.mechanisms")
    if not any(name in HASHES for name in mechanisms):
        raise CannotStart(
            f"refusing to listen on {address.host} without SCRAM: sasl.enabled.mechanisms is {','.join(mechanisms)}; "
            f"add SCRAM-SHA-256 or SCRAM-SHA-512, or set {OVERRIDE}=true"
        )


def _listen(address: Address, settings: Settings) -> socket.socket:
    host, port = address.host, address.port
    try:
        # As in Kafka, no host means every address.
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise CannotStart(f"the address {host} cannot be found: {e.strerror}; use 127.0.0.1") from None
    family, kind, protocol, _, place = found[0]
    _check(address, settings, ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback)
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for name, option in BUFFERS.items():  # what is accepted inherits them
        if (size := settings.integer(name)) != -1:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
    try:
        sock.bind(place)
        sock.listen(limits.BACKLOG)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            text = f"port {port} of {host} is taken; choose another with --listen {host}:PORT (0 picks a free one)"
        elif e.errno == errno.EACCES:
            text = f"port {port} of {host} needs more rights; choose one above 1023"
        else:
            text = f"cannot listen on {host}:{port}: {e.strerror}"
        raise CannotStart(text) from None
    sock.setblocking(False)
    return sock
