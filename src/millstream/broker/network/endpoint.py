"""One end of a client's connection: the socket, and what its two directions and its requests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from millstream.broker.broker import Broker


class Socket(Protocol):
    """What a connection needs of a non-blocking socket."""

    def fileno(self) -> int:
        """The descriptor that the loop watches."""

    def recv_into(self, view: memoryview, /) -> int:
        """Read what is there; BlockingIOError when nothing is."""

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0, /) -> int:
        """Send a part; BlockingIOError when nothing can be taken."""

    def close(self) -> None:
        """Close it."""


class Endpoint:
    """The socket of a connection; reading (Reader), writing (Writer) and whose it is (Client) are added to it."""

    def __init__(self, broker: Broker, sock: Socket) -> None:
        self.broker = broker
        self.sock = sock
        self.fd = sock.fileno()
        self.closed = False
        self._reading = True  # the loop tells when something comes
        self.opened = self.last_active = broker.loop.time()

    def close(self, reason: str = "", quiet: bool = False) -> None:
        """Endpoint the connection, and say why unless it is an ordinary end."""
        raise NotImplementedError

    def _update_reading(self) -> None:
        """Read only while there is room for the answers."""
        raise NotImplementedError
