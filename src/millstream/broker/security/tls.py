"""TLS: the context from Kafka's settings (PEM files, KIP-651), and a socket that behaves like a plain one.

The connection's code drives non-blocking sockets from readiness callbacks; OpenSSL works the same way when "wants more"
is raised as BlockingIOError. What differs is in `broker/tls_connection.py`.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.settings import MillstreamError
from millstream.settings.addresses import resolve

if TYPE_CHECKING:
    from millstream.broker.settings import Settings

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# RFC 2253's short names; Java writes others as object identifiers.
_SHORT: Final = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip


class TlsError(Exception):
    """The TLS settings cannot be used; the text says which and what to do."""


def files(settings: Settings) -> list[str]:
    """The files that a context is made from."""
    return [p for p in (settings.values["ssl.keystore.location"], settings.values["ssl.truststore.location"]) if p]


def server_context(settings: Settings) -> ssl.SSLContext:
    """The context of a listener. Raises TlsError."""
    values = settings.values
    location = values["ssl.keystore.location"]
    if not location:
        raise TlsError(
            "TLS needs ssl.keystore.location=FILE: a PEM file with the private key and the certificate chain"
        )
    try:
        password = resolve(values["ssl.key.password"], "ssl.key.password")
    except MillstreamError as e:
        raise TlsError(str(e)) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A renegotiation lets a client make the broker work, and a send wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    enabled = [VERSIONS[name] for name in settings.names("ssl.enabled.protocols")]
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    path = Path(location)
    try:
        path.open().close()
        context.load_cert_chain(path, password=lambda: password)
        if values["ssl.cipher.suites"]:
            context.set_ciphers(values["ssl.cipher.suites"].replace(",", ":"))
    except ssl.SSLError as e:
        reason = (
            "the password of the key is wrong or missing (ssl.key.password)"
            if "PASSWORD" in str(e).upper() or ("DECRYPT" in str(e).upper())
            else str(e.reason or e)
        )
        raise TlsError(
            f"ssl.keystore.location={location}: {reason}; expected PEM with a private key and certificates"
        ) from None
    except OSError as e:
        raise TlsError(f"ssl.keystore.location={location} cannot be read: {e.strerror or e}") from None
    context.verify_mode = CLIENT_AUTH[values["ssl.client.auth"]]
    trusted = values["ssl.truststore.location"]
    if trusted:
        try:
            context.load_verify_locations(trusted)
        except OSError as e:
            raise TlsError(
                f"ssl.truststore.location={trusted}: {e.strerror or e}; expected a PEM file of certificates"
            ) from None
    elif context.verify_mode is not ssl.CERT_NONE:
        raise TlsError(
            "ssl.client.auth needs ssl.truststore.location=FILE: the PEM certificates that sign those of clients"
        )
    return context


class TlsSocket:
    """A TLS socket with the calls and errors of a plain non-blocking one."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.pending = self._tls.pending
        self.fileno = self._tls.fileno
        self.close = self._tls.close

    def handshake(self) -> str | None:
        """Go on with the handshake: None when it is complete, else what it waits for ("read" or "write")."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return "read"
        except ssl.SSLWantWriteError:
            return "write"
        except ssl.SSLError as e:
            raise ConnectionAbortedError(f"TLS handshake failed: {e.reason or e}") from None
        return None

    def recv_into(self, view: memoryview) -> int:
        """Read what is there; BlockingIOError when nothing is."""
        try:
            return self._tls.recv_into(view)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as e:
            raise ConnectionResetError(f"TLS: {e.reason or e}") from None

    def send(self, data: Any, flags: int = 0) -> int:
        """Send a part; BlockingIOError when nothing can be taken. The next call must begin with the same bytes."""
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as e:
            raise ConnectionResetError(f"TLS: {e.reason or e}") from None

    def principal(self) -> str | None:
        """The client certificate's name as Kafka writes it ("User:CN=…,O=…"); None without one."""
        certificate: Any = self._tls.getpeercert()
        if not certificate:
            return None
        parts = []
        for names in reversed(certificate["subject"]):
            parts.append("+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in names))
        return "User:" + ",".join(parts)


def _escaped(value: str) -> str:
    """A name's value by RFC 2253."""
    text = "".join("\\" + c if c in ',+"\\<>;' else c for c in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and not text.endswith("\\ ") else text
