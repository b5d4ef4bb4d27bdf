"""What a connection must pass on a SASL listener before its first request: Kafka's SaslServerAuthenticator.

ApiVersions, then SaslHandshake (the mechanism), then SaslAuthenticate until the exchange is complete; after version 0
of the handshake the tokens come bare, with only their size before them. Anything else closes the connection. A failure
is answered after connection.failed.authentication.delay.ms, without saying what was wrong, and closes it too. PLAIN
passwords are checked against the SCRAM keys, off the event loop: the key derivation takes milliseconds.

With connections.max.reauth.ms what was shown counts for so long: a client that knows it (SaslAuthenticate 1) begins again
with SaslHandshake, by the same mechanism and as the same user, and continues; one that does not is cut off (KIP-368).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.security.scram import HASHES, AuthenticationError, Exchange, matches
from millstream.broker.security.session import Session
from millstream.protocol import errors
from millstream.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

_log = logging.getLogger(__name__)
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
PLAIN = "PLAIN"
MECHANISMS = (*HASHES, PLAIN)


class Gate:
    """The authentication of one connection; with the session that it renews, if it does."""

    def __init__(self, broker: Broker, connection: Connection, session: Session | None = None) -> None:
        self._broker = broker
        self._connection = connection
        self._session = session
        self._allowed = {API_VERSIONS, SASL_HANDSHAKE} if session is None else {SASL_HANDSHAKE}
        self.since = broker.loop.time()  # for how long it has been the client's turn
        self.renews = session is not None
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self.raw = False  # the next frames are bare SASL tokens
        self.max_frame = broker.settings.integer("sasl.server.max.receive.size")

    def check(self, key: int) -> None:
        """Refuse a request that may not come yet."""
        if key not in self._allowed:
            raise ProtocolError(f"the API key {key} in the wrong place of the authentication (SASL is required here)")

    def handshake(self, mechanism: str, version: int) -> int:
        """The client has chosen a mechanism; the error code."""
        if mechanism not in self._broker.settings.names("sasl.enabled.mechanisms"):
            self._fail(f"the SASL mechanism {mechanism[:40]!r} is not enabled")
            return errors.UNSUPPORTED_SASL_MECHANISM
        self._mechanism = mechanism
        self._allowed = {SASL_AUTHENTICATE}
        self.raw = version == 0
        if mechanism != PLAIN:
            store = self._broker.access
            self._exchange = Exchange(
                mechanism,
                lambda user: store.credential(user, mechanism),
                store.challenge,
                secrets.token_urlsafe(24),
            )
        return errors.NONE

    def authenticate(self, token: bytes) -> SaslAuthenticateResponse | asyncio.Future[SaslAuthenticateResponse]:
        """The answer to a token of the client."""
        self._allowed = set()
        try:
            if self._session is not None and self._session.mechanism != self._mechanism:
                raise AuthenticationError(f"by {self._mechanism} what was by {self._session.mechanism} is not renewed")
            exchange = self._exchange
            if exchange is None:
                return self._plain(token)
            if not exchange.user:
                answer = exchange.first(token)
                self._allowed = {SASL_AUTHENTICATE}
                return SaslAuthenticateResponse(0, None, answer)
            return SaslAuthenticateResponse(0, None, exchange.final(token), self._passed(exchange.user))
        except AuthenticationError as e:
            return self._refused(str(e))

    def without_header(self, token: bytes) -> None:
        """A token without a request around it; the answer is bare, too."""
        answer = self.authenticate(token)
        if isinstance(answer, SaslAuthenticateResponse):
            self._connection.send_without_header(answer.auth_bytes)
            return

        def done(future: asyncio.Future[SaslAuthenticateResponse]) -> None:
            if not future.cancelled() and not future.result().error_code:
                self._connection.send_without_header(future.result().auth_bytes)

        answer.add_done_callback(done)

    def _plain(self, token: bytes) -> asyncio.Future[SaslAuthenticateResponse]:
        parts = token.split(b"\0")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationError("a malformed PLAIN token")
        try:
            acting, user = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            raise AuthenticationError("a PLAIN token that is not UTF-8") from None
        if acting not in ("", user):
            raise AuthenticationError(f"{user!r} cannot act as {acting[:80]!r}")
        found = self._broker.access.users.get(user, {})
        mechanism = next((name for name in HASHES if name in found), "SCRAM-SHA-256")
        known = found.get(mechanism) or self._broker.access.challenge(user)
        loop = self._broker.loop
        response: asyncio.Future[SaslAuthenticateResponse] = loop.create_future()

        def checked(work: asyncio.Future[bool]) -> None:
            if self._connection.closed or response.done() or work.cancelled():
                return
            text = f"wrong password of {user!r}" if found else f"unknown user {user!r}"
            try:
                if not work.result() or not found:
                    raise AuthenticationError(text)
                response.set_result(SaslAuthenticateResponse(0, None, b"", self._passed(user)))
            except AuthenticationError as e:
                refused = self._refused(str(e))
                refused.add_done_callback(lambda r: _settle(response, r.result()))

        loop.run_in_executor(self._broker.passwords, matches, mechanism, known, parts[2]).add_done_callback(checked)
        return response

    def _passed(self, user: str) -> int:
        """The client is this user; for how many milliseconds that counts (0: for good). Raises AuthenticationError."""
        connection = self._connection
        principal = f"User:{user}"
        if self._session is not None and self._session.principal != principal:
            raise AuthenticationError(f"{self._session.principal} cannot become {principal} on the same connection")
        lifetime = self._broker.settings.integer("connections.max.reauth.ms")
        if lifetime:
            ends = self._broker.loop.time() + lifetime / 1000
            begun = None if self._session is None else self.since
            connection.session = Session(self._mechanism, principal, ends, begun)
        connection.principal = principal
        connection.gate = None
        self._broker.authenticated(connection)
        _log.debug("%s is %s (%s)", connection.peer, connection.principal, self._mechanism)
        return lifetime

    def _refused(self, why: str) -> asyncio.Future[SaslAuthenticateResponse]:
        delay = self._fail(why)
        what = "authentication" if self._session is None else "re-authentication"
        text = f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"
        loop = self._broker.loop
        response: asyncio.Future[SaslAuthenticateResponse] = loop.create_future()
        refusal = SaslAuthenticateResponse(errors.SASL_AUTHENTICATION_FAILED, text, b"")
        loop.call_later(delay, _settle, response, refusal)
        return response

    def _fail(self, why: str) -> float:
        """Close the connection a little later, so that guessing is slow; returns the delay of the answer."""
        self._allowed = set()
        delay = self._broker.settings.seconds("connection.failed.authentication.delay.ms")
        connection = self._connection
        _log.warning("authentication of %s failed: %s", connection.peer, why)
        self._broker.loop.call_later(delay + limits.LINGER_SECONDS, connection.close, "authentication failed", True)
        return delay


def _settle(future: asyncio.Future[SaslAuthenticateResponse], response: SaslAuthenticateResponse) -> None:
    """Answer, unless the connection is gone."""
    if not future.done():
        future.set_result(response)
