"""One client's connection: frames in, answers out in the order of the requests, bounds on both.

The socket is non-blocking and driven by the loop's readiness callbacks rather than a transport: requests are read into
one shared buffer and answered with a single ``send``, and pieces of log files go out with ``sendfile``.
"""

import asyncio
import logging
import os
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from millstream.broker import limits
from millstream.broker.apis import APIS, Handler, Served
from millstream.broker.security.acls import ANONYMOUS, OPERATIONS
from millstream.broker.security.gate import Gate
from millstream.broker.security.quotas import REQUEST
from millstream.protocol.wire import Message, ProtocolError, skip_tags

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.security.listeners import Listener

logger = logging.getLogger(__name__)

REQUEST_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
RESPONSE_HEADER = struct.Struct(">ii")  # size, correlation id
SIZE = struct.Struct(">i")
API_VERSIONS = 18


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


class Waiting:
    """A request whose answer is not known yet, or waits behind one."""

    __slots__ = ("correlation", "result", "served", "version")

    def __init__(self, result: Any, served: Served, version: int, correlation: int) -> None:
        self.result = result
        self.served = served
        self.version = version
        self.correlation = correlation


class Connection:
    """Reads requests, has the broker answer them, writes the answers."""

    def __init__(self, broker: "Broker", sock: Socket, peer: str, listener: "Listener") -> None:
        self.broker = broker
        self.listener = listener
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = peer.rpartition(":")[0]
        self.host = "/" + self.address  # as Kafka describes a member's host
        self.client_id = ""
        self.client_software = ""
        self.principal = ANONYMOUS
        self.gate: Gate | None = None  # what is still to be passed before requests
        if listener.sasl:
            self.gate = Gate(broker, self)
            broker.stranger(self)
        self.opened = self.last_active = broker.loop.time()
        self.closed = False
        self._client_id_bytes = b""
        self._rest = b""  # the start of a frame, or frames that wait until the connection is read again
        self._frame: bytearray | None = None  # a large frame that is being read
        self._size = 0  # the announced size of that frame
        self._filled = 0
        self._waiting: deque[Waiting] = deque()
        self._outbox: deque[bytearray | memoryview | Unfinished] = deque()
        self._unsent = 0
        self._writing = False  # the socket was full; the loop tells when it is not
        self._reading = True
        self._starved = False  # waits for the budget of frame bytes
        self.request_size = 0  # of the request that is handled now
        self._muted = 0  # throttle times under way
        broker.loop.add_reader(self.fd, self.readable)

    # ---- reading

    def readable(self) -> None:
        """Called by the loop when bytes (or the end) have come."""
        try:
            if self._frame is not None:
                self._read_large(self._frame)
            else:
                self._read_small()
            self.flush()
        except ProtocolError as e:
            self.close(f"not understood: {e}")
        except (ConnectionError, TimeoutError) as e:
            self.close(str(e), quiet=True)
        except Exception:
            logger.exception("closing %s: its request failed in the broker", self.peer)
            self.close()

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
        """Handle the whole frames in ``view[:total]``; what is left waits."""
        position = 0
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
            self._rest = bytes(view[position:total])

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
                self._starved = True
                self._update_reading()
                self.broker.starve(self)
                return
            frame.extend(bytes(more))
            self.broker.charge(more)

    def feed(self) -> bool:
        """The budget of frame bytes may have room again; whether this connection need no longer wait for it."""
        frame = self._frame
        if self.closed or not self._starved or frame is None:
            return True
        more = min(self._size - len(frame), len(frame))
        if not self.broker.has_room(more):
            return False
        self._starved = False
        frame.extend(bytes(more))
        self.broker.charge(more)
        self._update_reading()
        return True

    def overdue(self, now: float, idle: float) -> str | None:
        """Why the connection should be closed for its slowness, if it should."""
        if self.gate is not None and now - self.opened > limits.AUTHENTICATION_SECONDS:
            return f"not authenticated within {limits.AUTHENTICATION_SECONDS:.0f} s"
        if self._muted:
            return None
        unfinished = (self._frame is not None or self._rest) and not self._waiting and not self._outbox
        if unfinished and now - self.last_active > limits.STALL_SECONDS:
            return f"the rest of a request did not come for {limits.STALL_SECONDS:.0f} s"
        if now - self.last_active > idle and not self._waiting:
            return f"idle for more than {idle:.0f} s (connections.max.idle.ms)"
        return None

    def mute(self, seconds: float) -> None:
        """Handle no further request for so long: what a client meets that does not keep to its throttle time."""
        self._muted += 1
        self._update_reading()
        self.broker.loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted -= 1
        self.last_active = self.broker.loop.time()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read only while there is room for the answers; frames already here come first."""
        want = not (
            self._starved
            or self._muted
            or self.closed
            or len(self._waiting) >= limits.MAX_IN_FLIGHT
            or self._unsent > limits.MAX_UNSENT_BYTES
        )
        if want == self._reading or self.closed:
            return
        self._reading = want
        if want:
            self.broker.loop.call_soon(self._resume)
        else:
            self.broker.loop.remove_reader(self.fd)

    def _resume(self) -> None:
        """Handle frames that came before reading was paused, then read on."""
        if self.closed or not self._reading:
            return
        try:
            if self._rest:
                rest, self._rest = bytearray(self._rest), b""
                self._take(memoryview(rest), len(rest))
                paused = not self._reading
                self.flush()
                if paused:  # this is called again when there is room
                    return
            if self._reading and not self.closed:
                self.broker.loop.add_reader(self.fd, self.readable)
        except ProtocolError as e:
            self.close(f"not understood: {e}")
        except Exception:
            logger.exception("closing %s: its request failed in the broker", self.peer)
            self.close()

    # ---- requests

    def _request(self, frame: memoryview) -> None:
        """Handle one frame. ``frame`` is valid only during the call."""
        gate = self.gate
        if gate is not None and gate.raw:
            gate.bare(bytes(frame))
            return
        try:
            key, version, correlation, length = REQUEST_HEADER.unpack_from(frame)
        except struct.error:
            raise ProtocolError("a request shorter than its header") from None
        served = APIS.get(key)
        if served is None:
            raise ProtocolError(f"a request with the API key {key}, which this broker does not serve")
        if gate is not None:
            gate.check(key)
        position = 10
        if length > 0:
            position += length
            if position > len(frame):
                raise ProtocolError("a client id longer than its request")
            raw = bytes(frame[10:position])
            if raw != self._client_id_bytes:
                self._client_id_bytes = raw
                self.client_id = raw.decode("utf-8", "replace")
        if not served.first <= version <= served.last:
            if key != API_VERSIONS:
                raise ProtocolError(
                    f"{served.name} version {version} (client id {self.client_id!r}); served are {served.first} to {served.last}"
                )
            self._answer(served.unsupported(), served, 0, correlation)
            return
        if version >= served.flexible:
            if position >= len(frame):
                raise ProtocolError("a request shorter than its header")
            position = position + 1 if not frame[position] else skip_tags(frame, position, len(frame))
        handler = served.handler or served.load()
        try:
            request, _ = served.decoders[version](frame, position, len(frame), version)
        except (struct.error, IndexError, UnicodeDecodeError):
            served.request.decode(frame, version, position)  # says what is wrong
            raise
        if self.broker.quotas.active:
            self.request_size = len(frame) + 4
            result = self._measured(handler, request, version)
        else:
            result = handler(self.broker, self, request, version)
        if result is None:
            return
        if isinstance(result, Message) and not self._waiting:
            self._answer(result, served, version, correlation)
            return
        self._waiting.append(Waiting(result, served, version, correlation))
        if isinstance(result, asyncio.Future):
            result.add_done_callback(self._answered)
        if len(self._waiting) >= limits.MAX_IN_FLIGHT:
            self._update_reading()

    def _answered(self, _: "asyncio.Future[Message]") -> None:
        """A waiting request has its answer: send it and those that waited behind it."""
        if self.closed:
            return
        waiting = self._waiting
        try:
            while waiting:
                result = waiting[0].result
                if isinstance(result, asyncio.Future):
                    if not result.done():
                        break
                    if result.cancelled():
                        self.close("a request was given up", quiet=True)
                        return
                    result = result.result()
                item = waiting.popleft()
                if result is not None:
                    self._answer(result, item.served, item.version, item.correlation)
            self.flush()
        except Exception:
            logger.exception("closing %s: its request failed in the broker", self.peer)
            self.close()
            return
        self._update_reading()

    def _measured(self, handler: Handler, request: Message, version: int) -> Any:
        """Handle a request and count the time that it takes, if there is a quota for it."""
        if not self.broker.quotas.requests:
            return handler(self.broker, self, request, version)
        start = time.perf_counter()
        result = handler(self.broker, self, request, version)
        wait = self.count(REQUEST, (time.perf_counter() - start) * 100)
        if wait:
            self.mute(wait / 1000)
            if isinstance(result, Message):
                _tell_wait(result, wait)
            elif isinstance(result, asyncio.Future):
                result.add_done_callback(
                    lambda future: _tell_wait(None if future.cancelled() else future.result(), wait)
                )
        return result

    def count(self, key: str, amount: float) -> int:
        """Count something against the client's quota; for how many milliseconds it must wait."""
        user = self.principal.partition(":")[2]
        return self.broker.quotas.record(key, user, self.client_id, amount, self.broker.now_ms())

    def may(self, operation: int, resource: int, name: str) -> bool:
        """Whether the client may do an operation on a resource."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allowed(self.principal, self.address, operation, resource, name)

    def may_somewhere(self, operation: int, resource: int) -> bool:
        """Whether there is any resource of a kind on which the client may do an operation."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allowed_somewhere(self.principal, self.address, operation, resource)

    def operations(self, resource: int, name: str) -> int:
        """What the client may do with a resource, as a set of bits (KIP-430)."""
        authorizer = self.broker.authorizer
        if authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[resource])
        return authorizer.operations(self.principal, self.address, resource, name)

    # ---- writing

    def send_bare(self, token: bytes) -> None:
        """Send bytes with only their size before them."""
        if not self.closed:
            self._outbox.append(bytearray(SIZE.pack(len(token)) + token))
            self._unsent += 4 + len(token)
            self.flush()

    def _send_file(self, item: Unfinished) -> int:
        """Send a part of a piece of a file."""
        return os.sendfile(self.fd, item.slice.file, item.position, item.left)

    def _answer(self, response: Message, served: Served, version: int, correlation: int) -> None:
        """Put a response into the outbox."""
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
            self._outbox.append(out)
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
                self._outbox.append(view[start:position])
            start = position
            for piece in records.slices:
                if piece.size <= limits.COPIED_SLICE_BYTES:
                    data = os.pread(piece.file, piece.size, piece.position)
                    piece.release()
                    if len(data) != piece.size:
                        raise OSError(f"a log file is shorter than its index says: {len(data)} of {piece.size} bytes")
                    self._outbox.append(memoryview(data))
                else:
                    self._outbox.append(Unfinished(piece))
        if start < len(out):
            self._outbox.append(view[start:])
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        """Leave further requests until answers are sent: one read may bring thousands that ask for megabytes each."""
        if self._reading and self._unsent > limits.MAX_UNSENT_BYTES:
            self._update_reading()

    def flush(self) -> None:
        """Send what the socket takes now; the rest when it is writable."""
        outbox = self._outbox
        if self._writing or not outbox or self.closed:
            return
        try:
            while outbox:
                item = outbox[0]
                if isinstance(item, Unfinished):
                    sent = self._send_file(item)
                    if not sent:
                        raise OSError("a log file is shorter than its index says")
                    item.position += sent
                    item.left -= sent
                    self._unsent -= sent
                    if not item.left:
                        outbox.popleft()
                        item.slice.release()
                    continue
                if len(outbox) > 1:
                    item = self._gather()
                more = socket.MSG_MORE if len(outbox) > 1 else 0
                sent = self.sock.send(item, more)
                self._unsent -= sent
                if sent == len(item):
                    outbox.popleft()
                else:
                    outbox[0] = memoryview(item)[sent:]
            if not self._reading:
                self._update_reading()
        except (BlockingIOError, InterruptedError):
            self._writing = True
            self.broker.loop.add_writer(self.fd, self._writable)
            self._update_reading()
        except ConnectionError as e:
            self.close(str(e), quiet=True)
        except OSError as e:
            self.close(f"its answer could not be sent: {e}")

    def _gather(self) -> bytearray | memoryview:
        """Join the small pieces at the head of the outbox into one."""
        outbox = self._outbox
        parts: list[bytearray | memoryview] = []
        size = 0
        while outbox and size < 65536:
            item = outbox[0]
            if isinstance(item, Unfinished) or len(item) > 65536:
                break
            parts.append(item)
            size += len(item)
            outbox.popleft()
        if not parts:
            item = outbox[0]
            assert not isinstance(item, Unfinished)
            return item
        joined = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        outbox.appendleft(joined)
        return joined

    def _writable(self) -> None:
        self.broker.loop.remove_writer(self.fd)
        self._writing = False
        self.last_active = self.broker.loop.time()
        self.flush()
        if not self.closed:
            self._update_reading()

    def close(self, reason: str = "", quiet: bool = False) -> None:
        """End the connection; waiting requests are given up."""
        if self.closed:
            return
        self.closed = True
        if reason:
            level = logging.DEBUG if quiet else logging.WARNING
            who = f"{self.peer} ({self.client_id or 'no client id'}, {self.client_software or 'unknown software'})"
            logger.log(level, "closing the connection from %s: %s", who, reason)
        loop = self.broker.loop
        loop.remove_reader(self.fd)
        loop.remove_writer(self.fd)
        self.sock.close()
        if self._frame is not None:
            size = len(self._frame)
            self._frame = None
            self.broker.unfinished -= 1
            self.broker.charge(-size)
        for item in self._outbox:
            if isinstance(item, Unfinished):
                item.slice.release()
        self._outbox.clear()
        for waiting in self._waiting:
            if isinstance(waiting.result, asyncio.Future) and not waiting.result.done():
                waiting.result.cancel()
        self._waiting.clear()
        self.broker.forget(self)


def _tell_wait(response: Message | None, wait_ms: int) -> None:
    """Put a wait into the answer, if it has a place for it."""
    if response is not None and wait_ms > getattr(response, "throttle_time_ms", wait_ms):
        response.throttle_time_ms = wait_ms  # type: ignore[attr-defined]
