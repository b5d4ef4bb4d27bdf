"""Who may look: one-time tokens in links, exchanged for sessions in a cookie. Kept in memory, gone with the process."""

from __future__ import annotations

import hashlib
import secrets

MAX_LINKS = 16  # unused links; the oldest is forgotten, so that asking for links cannot fill the memory
MAX_SESSIONS = 64  # signed-in browsers; the oldest is signed out


class Access:
    """Issues links and knows sessions. Only digests are kept: comparing them tells nothing about the secrets by its timing.

    port: part of the cookie's name, because browsers do not keep cookies of different ports apart.
    """

    def __init__(self, port: int) -> None:
        self.cookie = f"millstream-{port}"
        self._links: dict[bytes, None] = {}
        self._sessions: dict[bytes, None] = {}

    def new_token(self) -> str:
        """Return a token that can be redeemed once."""
        return _add(self._links, MAX_LINKS)

    def redeem(self, token: str) -> str | None:
        """Return a new session for an unused token, or None. The token is used up."""
        digest = _digest(token)
        if digest not in self._links:
            return None
        del self._links[digest]
        return _add(self._sessions, MAX_SESSIONS)

    def knows(self, session: str | None) -> bool:
        """Return whether `session` came from `redeem` and has not been pushed out by newer ones."""
        return session is not None and _digest(session) in self._sessions

    def set_cookie(self, session: str) -> str:
        """Return the Set-Cookie header of a session: not for scripts, never sent on another site's behalf."""
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _add(store: dict[bytes, None], limit: int) -> str:
    secret = secrets.token_urlsafe(32)
    store[_digest(secret)] = None
    while len(store) > limit:
        del store[next(iter(store))]
    return secret
