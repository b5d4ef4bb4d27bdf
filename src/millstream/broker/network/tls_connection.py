"""A connection over TLS: the same requests and answers; a handshake first, and files go through memory."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.network.connection import Connection
from millstream.broker.network.writer import Unfinished
from millstream.broker.security.tls import TlsSocket

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.security.listeners import Listener


class TlsConnection(Connection):
    """What differs from a plain connection."""

    short_is_full = False  # a piece is sent in parts, and OpenSSL keeps to itself what it could not write

    def __init__(self, broker: Broker, sock: socket.socket, peer: str, listener: Listener) -> None:
        assert listener.context is not None
        self._shaken = False
        self.tls = TlsSocket(sock, listener.context)
        super().__init__(broker, self.tls, peer, listener)
        broker.must_authenticate(self)

    def readable(self) -> None:
        """The handshake, then requests; also those that OpenSSL has decrypted already."""
        if not self._shaken and not self._shake():
            return
        super().readable()
        while not self.closed and self._reading and not self._turn_over and self.tls.pending():
            super().readable()

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is complete."""
        try:
            wants = self.tls.handshake()
        except OSError as e:
            self.close(str(e), quiet=not isinstance(e, ConnectionAbortedError))
            return False
        loop = self.broker.loop
        loop.remove_writer(self.fd)
        if wants == "write":
            loop.add_writer(self.fd, self.readable)
        if wants is not None:
            return False
        self._shaken = True
        if self.gate is None:
            self.principal = self.tls.principal() or self.principal
            self.broker.authenticated(self)
        return True

    def _resume(self) -> None:
        super()._resume()
        if not self.closed and self._reading and not self._turn_over and self.tls.pending():
            self.readable()

    def _send_file(self, item: Unfinished) -> int:
        data = os.pread(item.slice.file, min(item.left, limits.TLS_FILE_BYTES), item.position)
        return self.sock.send(data) if data else 0

    def close_if_overdue(self, now: float, idle: float) -> None:
        """A handshake may take too long, too."""
        if not self._shaken and now - self.opened > limits.AUTHENTICATION_SECONDS:
            self.close(f"no TLS handshake within {limits.AUTHENTICATION_SECONDS:.0f} s")
        else:
            super().close_if_overdue(now, idle)
