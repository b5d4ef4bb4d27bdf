"""The frames of a connection as they come in, bounded by what they announce before anything is kept for them.

All connections read into one shared buffer; only an unfinished frame waits, a large one in a buffer that grows as its
bytes come and is charged to the broker's budget (`queued.max.request.bytes`).
"""

from __future__ import annotations

import struct
from time import monotonic
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.apis import APIS
from millstream.broker.network.endpoint import Endpoint, Socket
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.security.gate import Gate

SIZE = struct.Struct(">i")


class Reader(Endpoint):
    """Cuts what comes into frames, and gives each to `_request`."""

    def __init__(self, broker: Broker, sock: Socket) -> None:
        super().__init__(broker, sock)
        self.gate: Gate | None = None  # what is still to be passed before requests
        self._rest: bytes | memoryview = (
            b""  # the start of a frame, or frames that wait until the connection is read again
        )
        self._turn_over = False  # frames wait until others have had their turn
        self._frame: bytearray | None = None  # a large frame that is being read
        self._size = 0  # the announced size of that frame
        self._filled = 0
        self._backpressured = False  # waits for the budget of frame bytes

    def _request(self, frame: memoryview) -> None:
        """Handle one frame, which is valid only during the call."""
        raise NotImplementedError

    def _read_small(self) -> None:
        view = self.broker.read_view
        rest = self._rest
        start = len(rest)
        if start:
            view[:start] = rest
        try:
            count = self.sock.recv_into(view[start:])
        except (BlockingIOError, InterruptedError):
            return
        if not count:
            self.close("", quiet=True)
            return
        self._rest = b""
        self.last_active = self.broker.loop.time()
        self._take(view, start + count)

    def _take(self, view: memoryview, total: int) -> None:
        """Handle the whole frames in `view[:total]`, for a while; what is left waits."""
        position = 0
        end = 0.0
        while total - position >= 4 and self._reading:
            (size,) = SIZE.unpack_from(view, position)
            if size + 4 > total - position:
                self._check_size(view[position + 4 : total], size)
                if size > limits.SMALL_FRAME_BYTES:
                    self._begin_large(view[position + 4 : total], size)
                    return
                break
            if size < 8:
                self._check_size(view[position + 4 : total], size)
            position += 4 + size
            self._request(view[position - size : position])
            if self.closed:
                return
            if position < total:
                # Looked at behind the first request, so that a request that comes alone does not cost it.
                now = monotonic()
                if not end:
                    end = now + limits.TURN_SECONDS
                elif now >= end:
                    self._turn_over = True
                    self.broker.loop.call_soon(self._next_turn)
                    break
        if position < total:
            own = view.obj is not self.broker.read_view.obj and (self._turn_over or not self._reading)
            self._rest = view[position:total] if own else bytes(view[position:total])

    def _next_turn(self) -> None:
        """Go on with what waits."""
        raise NotImplementedError

    def _check_size(self, view: memoryview, size: int) -> None:
        """Refuse a frame by what it announces, before anything is kept for it."""
        if self.gate is not None:
            if not (0 if self.gate.raw else 8) <= size <= self.gate.max_frame:
                raise ProtocolError(
                    f"a frame of {size} bytes before authentication "
                    f"(allowed: up to {self.gate.max_frame}, sasl.server.max.receive.size)"
                )
            if self.gate.raw:
                return
        if size < 8 or size > self.broker.max_frame:
            raise ProtocolError(
                f"a frame of {size} bytes (allowed: 8 to {self.broker.max_frame}, socket.request.max.bytes); "
                "is this a client of Kafka, and without TLS?"
            )
        if len(view) >= 2:
            key = (view[0] << 8) | view[1]
            if key not in APIS:
                raise ProtocolError(f"a request with the API key {key}, which this broker does not serve")
            if size > limits.MAX_OTHER_REQUEST_BYTES and key != 0:
                raise ProtocolError(
                    f"a {APIS[key].name} request of {size} bytes; allowed are {limits.MAX_OTHER_REQUEST_BYTES}"
                )

    def _begin_large(self, have: memoryview, size: int) -> None:
        capacity = min(size, max(limits.FIRST_BUFFER_BYTES, len(have)))
        if not self.broker.make_room(capacity):
            self.close("too many unfinished large requests (queued.max.request.bytes); the client will try again")
            return
        self._frame = bytearray(capacity)
        self.broker.charge(capacity)
        self.broker.unfinished += 1
        self._frame[: len(have)] = have
        self._size, self._filled = size, len(have)

    def _read_large(self, frame: bytearray) -> None:
        with memoryview(frame) as view:
            try:
                count = self.sock.recv_into(view[self._filled :])
            except (BlockingIOError, InterruptedError):
                return
        if not count:
            self.close("", quiet=True)
            return
        self.last_active = self.broker.loop.time()
        self._filled += count
        if self._filled == self._size:
            self._frame = None
            self.broker.unfinished -= 1
            try:
                self._check_size(memoryview(frame), self._size)
                self._request(memoryview(frame))
            finally:
                self.broker.charge(-len(frame))
        elif self._filled == len(frame):
            more = min(self._size - len(frame), len(frame))
            if not self.broker.has_room(more):
                self._backpressured = True
                self._update_reading()
                self.broker.backpressure(self)
                return
            frame.extend(bytes(more))
            self.broker.charge(more)

    def feed(self) -> bool:
        """The budget of frame bytes may have room again; whether this connection need no longer wait for it."""
        frame = self._frame
        if self.closed or not self._backpressured or frame is None:
            return True
        more = min(self._size - len(frame), len(frame))
        if not self.broker.has_room(more):
            return False
        self._backpressured = False
        frame.extend(bytes(more))
        self.broker.charge(more)
        self._update_reading()
        return True

    def _forget_frame(self) -> None:
        """The connection ends: an unfinished frame goes back to the budget."""
        if self._frame is not None:
            size = len(self._frame)
            self._frame = None
            self.broker.unfinished -= 1
            self.broker.charge(-size)
