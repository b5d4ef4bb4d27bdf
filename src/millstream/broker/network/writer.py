"""The answers of a connection on their way out: small pieces are joined, pieces of log files go with `sendfile`."""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from millstream.broker import limits
from millstream.broker.apis import Served
from millstream.broker.network.endpoint import Endpoint, Socket
from millstream.protocol.wire import Message

if TYPE_CHECKING:
    from millstream.broker.broker import Broker

RESPONSE_HEADER = struct.Struct(">ii")  # size, correlation id
SIZE = struct.Struct(">i")
API_VERSIONS = 18


class FileRange(Protocol):
    """Bytes of a file that are to be sent (log's Slice)."""

    file: int
    position: int
    size: int

    def release(self) -> None:
        """The bytes are sent, or will not be."""


class Unfinished:
    """A piece of a file on its way out."""

    __slots__ = ("left", "position", "slice")

    def __init__(self, piece: FileRange) -> None:
        self.slice = piece
        self.position = piece.position
        self.left = piece.size


class Writer(Endpoint):
    """Writes what the socket takes, and the rest when it takes more."""

    short_is_full = True
    """Whether a socket that took a part of a piece is full: it is not asked again before the loop says that it takes more."""

    def __init__(self, broker: Broker, sock: Socket) -> None:
        super().__init__(broker, sock)
        self._unsent_pieces: deque[bytearray | memoryview | Unfinished] = deque()
        self._unsent = 0
        self._writing = False  # the socket was full; the loop tells when it is not

    def send_without_header(self, token: bytes) -> None:
        """Send bytes with only their size before them."""
        if not self.closed:
            self._unsent_pieces.append(bytearray(SIZE.pack(len(token)) + token))
            self._unsent += 4 + len(token)
            self.flush()

    def _send_file(self, item: Unfinished) -> int:
        """Send a part of a piece of a file."""
        return os.sendfile(self.fd, item.slice.file, item.position, item.left)

    def _answer(self, response: Message, served: Served, version: int, correlation: int) -> None:
        """Put a response into the pieces."""
        out = bytearray(9 if version >= served.flexible and served.key != API_VERSIONS else 8)
        cuts: list[tuple[int, Any]] = []
        try:
            response.ENCODERS[version](response, out, version, cuts)
        except Exception as e:
            raise RuntimeError(
                f"the answer {response!r:.1000} to {served.name} version {version} cannot be encoded"
            ) from e
        size = len(out) - 4
        if not cuts:
            RESPONSE_HEADER.pack_into(out, 0, size, correlation)
            self._unsent_pieces.append(out)
            self._unsent += size + 4
            self._pause_if_full()
            return
        total = size + sum(len(records) for _, records in cuts)
        RESPONSE_HEADER.pack_into(out, 0, total, correlation)
        self._unsent += total + 4
        view = memoryview(out)
        start = 0
        for position, records in cuts:
            if position > start:
                self._unsent_pieces.append(view[start:position])
            start = position
            for piece in records.slices:
                if piece.size <= limits.COPIED_SLICE_BYTES:
                    data = os.pread(piece.file, piece.size, piece.position)
                    piece.release()
                    if len(data) != piece.size:
                        raise OSError(f"a log file is shorter than its index says: {len(data)} of {piece.size} bytes")
                    self._unsent_pieces.append(memoryview(data))
                else:
                    self._unsent_pieces.append(Unfinished(piece))
        if start < len(out):
            self._unsent_pieces.append(view[start:])
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        """Leave further requests until answers are sent: one read may bring thousands that ask for megabytes each."""
        if self._reading and self._unsent > limits.MAX_UNSENT_BYTES:
            self._update_reading()

    def flush(self) -> None:
        """Send what the socket takes now; the rest when it is writable."""
        if self._writing or not self._unsent_pieces or self.closed:
            return
        if not self._send() and not self.closed:
            self._writing = True
            self.broker.loop.add_writer(self.fd, self._writable)
            self._update_reading()
        elif not self._reading:
            self._update_reading()

    def _send(self) -> bool:
        """Send until nothing is left or the socket is full; whether it is empty."""
        pieces = self._unsent_pieces
        try:
            while pieces:
                item = pieces[0]
                if isinstance(item, Unfinished):
                    sent = self._send_file(item)
                    if not sent:
                        raise OSError("a log file is shorter than its index says")
                    item.position += sent
                    item.left -= sent
                    self._unsent -= sent
                    if not item.left:
                        pieces.popleft()
                        item.slice.release()
                    elif self.short_is_full:
                        return False
                    continue
                if len(pieces) > 1:
                    item = self._gather()
                more = socket.MSG_MORE if len(pieces) > 1 else 0
                sent = self.sock.send(item, more)
                self._unsent -= sent
                if sent == len(item):
                    pieces.popleft()
                else:
                    pieces[0] = memoryview(item)[sent:]
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionError as e:
            self.close(str(e), quiet=True)
        except OSError as e:
            self.close(f"its answer could not be sent: {e}")
        return not pieces

    def _gather(self) -> bytearray | memoryview:
        """Join the small pieces at the head of the pieces into one."""
        pieces = self._unsent_pieces
        parts: list[bytearray | memoryview] = []
        size = 0
        while pieces and size < 65536:
            item = pieces[0]
            if isinstance(item, Unfinished) or len(item) > 65536:
                break
            parts.append(item)
            size += len(item)
            pieces.popleft()
        if not parts:
            item = pieces[0]
            assert not isinstance(item, Unfinished)
            return item
        joined = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        pieces.appendleft(joined)
        return joined

    def _writable(self) -> None:
        """Called by the loop when the socket takes more; it keeps calling until nothing is left."""
        self.last_active = self.broker.loop.time()
        if self._send() and not self.closed:
            self.broker.loop.remove_writer(self.fd)
            self._writing = False
        if not self._reading:
            self._update_reading()

    def _discard(self) -> None:
        """The connection ends: what is left will not be sent."""
        for item in self._unsent_pieces:
            if isinstance(item, Unfinished):
                item.slice.release()
        self._unsent_pieces.clear()
