"""One client's connection: frames in, answers out in the order of the requests, bounds on both.

The socket is non-blocking and driven by the loop's readiness callbacks rather than a transport: requests are read into
one shared buffer and answered with a single `send`, and pieces of log files go out with `sendfile`. Reading, writing
and the client are classes of their own that this one is made of, so that no call goes through another object.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.broker import limits
from millstream.broker.apis import APIS, Handler, Served
from millstream.broker.network.client import Client
from millstream.broker.network.endpoint import Socket
from millstream.broker.network.reader import Reader
from millstream.broker.network.writer import API_VERSIONS, Writer
from millstream.broker.security.gate import SASL_HANDSHAKE, Gate
from millstream.broker.security.quotas import REQUEST
from millstream.broker.security.session import Session
from millstream.protocol.wire import Message, ProtocolError, skip_tags

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.security.listeners import Listener

_log = logging.getLogger(__name__)

REQUEST_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id


class Waiting:
    """A request whose answer is not known yet, or waits behind one."""

    __slots__ = ("correlation", "result", "served", "version")

    def __init__(self, result: Any, served: Served, version: int, correlation: int) -> None:
        self.result = result
        self.served = served
        self.version = version
        self.correlation = correlation


class Connection(Client, Reader, Writer):
    """Reads requests, has the broker answer them, writes the answers."""

    def __init__(self, broker: Broker, sock: Socket, peer: str, listener: Listener) -> None:
        super().__init__(broker, sock, peer)
        self.listener = listener
        if listener.sasl:
            self.gate = Gate(broker, self)
            broker.must_authenticate(self)
        self._client_id_bytes = b""
        self._waiting: deque[Waiting] = deque()
        self.request_size = 0  # of the request that is handled now
        self._muted = 0  # throttle times under way
        broker.loop.add_reader(self.fd, self.readable)

    # ---- reading

    def readable(self) -> None:
        """Called by the loop when bytes (or the end) have come."""
        if self._turn_over:
            return
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
            _log.exception("closing %s: its request failed in the broker", self.peer)
            self.close()

    def close_if_overdue(self, now: float, idle: float) -> None:
        """Close a connection that is too slow, or that was not used for `idle` seconds (clients expect that)."""
        if (
            self.gate is not None and self.gate.renews and self._waiting
        ):  # its answer waits behind those of earlier requests
            self.gate.since = now
        elif self.gate is not None and now - self.gate.since > limits.AUTHENTICATION_SECONDS:
            self.close(f"not authenticated within {limits.AUTHENTICATION_SECONDS:.0f} s")
        elif self._muted or self._waiting:
            return
        elif (
            (self._frame is not None or self._rest)
            and not self._unsent_pieces
            and now - self.last_active > limits.STALL_SECONDS
        ):
            self.close(f"the rest of a request did not come for {limits.STALL_SECONDS:.0f} s")
        elif now - self.last_active > idle:
            self.close(f"idle for more than {idle:.0f} s (connections.max.idle.ms)", quiet=True)

    def mute(self, seconds: float) -> None:
        """Handle no further request for so long: what a client meets that does not keep to its throttle time."""
        self._muted += 1
        self._update_reading()
        self.broker.loop.call_later(seconds, self._unmute)

    def hold(self) -> Callable[[], None]:
        """Handle no further request until what is returned is called: none may overtake the one handled now."""
        self._muted += 1
        self._update_reading()
        held = True

        def go_on() -> None:
            nonlocal held
            if held:
                held = False
                self._unmute()

        return go_on

    def _unmute(self) -> None:
        self._muted -= 1
        self.last_active = self.broker.loop.time()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read only while there is room for the answers; frames already here come first."""
        want = not (
            self._backpressured
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
        if self.closed or not self._reading or self._turn_over:
            return
        try:
            if self._rest:
                rest, self._rest = self._rest, b""
                view = rest if isinstance(rest, memoryview) else memoryview(bytearray(rest))
                self._take(view, len(view))
                paused = self._turn_over or not self._reading
                self.flush()
                if paused:  # this is called again when there is room
                    return
            if self._reading and not self.closed:
                self.broker.loop.add_reader(self.fd, self.readable)
        except ProtocolError as e:
            self.close(f"not understood: {e}")
        except Exception:
            _log.exception("closing %s: its request failed in the broker", self.peer)
            self.close()

    def _next_turn(self) -> None:
        self._turn_over = False
        self._resume()

    # ---- requests

    def _request(self, frame: memoryview) -> None:
        """Handle one frame. `frame` is valid only during the call."""
        gate = self.gate
        if gate is not None and gate.raw:
            gate.without_header(bytes(frame))
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
        elif self.session is not None and not self._goes_on(self.session, key):
            self.close("its authentication is too old (connections.max.reauth.ms)", quiet=True)
            return
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

    def _goes_on(self, session: Session, key: int) -> bool:
        """Whether a request may come; a SaslHandshake may renew the session, late too (Processor.processCompletedReceives)."""
        now = self.broker.loop.time()
        if key == SASL_HANDSHAKE and session.may_renew(now):
            self.gate = Gate(self.broker, self, session)
            return True
        return not session.ended(now)

    def _answered(self, _: asyncio.Future[Message]) -> None:
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
            _log.exception("closing %s: its request failed in the broker", self.peer)
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

    def close(self, reason: str = "", quiet: bool = False) -> None:
        """Endpoint the connection; waiting requests are given up."""
        if self.closed:
            return
        self.closed = True
        if reason:
            level = logging.DEBUG if quiet else logging.WARNING
            who = f"{self.peer} ({self.client_id or 'no client id'}, {self.client_software or 'unknown software'})"
            _log.log(level, "closing the connection from %s: %s", who, reason)
        loop = self.broker.loop
        loop.remove_reader(self.fd)
        loop.remove_writer(self.fd)
        self.sock.close()
        self._forget_frame()
        self._discard()
        for waiting in self._waiting:
            if isinstance(waiting.result, asyncio.Future) and not waiting.result.done():
                waiting.result.cancel()
        self._waiting.clear()
        self.broker.forget(self)


def _tell_wait(response: Message | None, wait_ms: int) -> None:
    """Put a wait into the answer, if it has a place for it."""
    if response is not None and wait_ms > getattr(response, "throttle_time_ms", wait_ms):
        response.throttle_time_ms = wait_ms  # type: ignore[attr-defined]
