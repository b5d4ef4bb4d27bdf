"""Who may look: one-time tokens in links, exchanged for sessions in a cookie. Kept in a file, so that they outlive the process.

The file (version 1, mode 0600, under an exclusive lock while it is changed) holds digests and their ends, oldest first:
  {"version": 1, "links": {digest: epoch seconds}, "sessions": {digest: epoch seconds}}
Whoever can write it can sign in: it is how `millstream console` makes a link, and why it stands in the data folder. A file that
is not understood counts as empty: everybody is signed out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = "console.json"  # in the data folder
VERSION = 1
MAX_LINKS = 16  # unused links; the oldest is forgotten, so that asking for links cannot fill the memory
MAX_SESSIONS = 64  # signed-in browsers; the oldest is signed out
LINK_S = 24 * 3600.0  # how long an unused link works
SESSION_S = 30 * 24 * 3600.0  # how long a browser stays signed in
_MAX_BYTES = 65_536  # of the file; one that is larger is not ours

Digests = dict[str, float]


class Access:
    """Issues links and knows sessions. Only digests are kept: comparing them tells nothing about the secrets by its timing.

    port: part of the cookie's name, because browsers do not keep cookies of different ports apart.
    file: where they are kept; None: in memory. clock: epoch seconds.
    """

    def __init__(self, port: int, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.cookie = f"millstream-{port}"
        self._file = file
        self._clock = clock
        self._read_at: tuple[int, ...] | None = None
        self._links: Digests = {}
        self._sessions: Digests = {}

    def new_token(self) -> str:
        """Return a token that can be redeemed once, within LINK_S. Raises OSError when the file cannot be written."""
        with self._changing():
            return self._add(self._links, MAX_LINKS, LINK_S)

    def redeem(self, token: str) -> str | None:
        """Return a new session for an unused token, or None. The token is used up."""
        digest = _digest(token)
        self._refresh()
        if digest not in self._links:
            return None
        with self._changing():
            if self._links.pop(digest, 0.0) < self._clock():
                return None
            return self._add(self._sessions, MAX_SESSIONS, SESSION_S)

    def knows(self, session: str | None) -> bool:
        """Return whether `session` came from `redeem`, is not over, and has not been pushed out by newer ones."""
        if session is None:
            return False
        self._refresh()
        return self._sessions.get(_digest(session), 0.0) > self._clock()

    def set_cookie(self, session: str, *, secure: bool = False) -> str:
        """Return the Set-Cookie header of a session: not for scripts, never sent on another site's behalf.

        secure: only over HTTPS, for a page that came over it.
        """
        return f"{self.cookie}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_S:.0f}" + (
            "; Secure" if secure else ""
        )

    def _add(self, store: Digests, limit: int, lasts: float) -> str:
        now = self._clock()
        for digest in [d for d, end in store.items() if end < now]:
            del store[digest]
        secret = secrets.token_urlsafe(32)
        store[_digest(secret)] = now + lasts
        while len(store) > limit:
            del store[next(iter(store))]
        return secret

    def _refresh(self) -> None:
        """Read the file again when somebody has changed it."""
        if self._file is None:
            return
        try:
            found = os.stat(self._file)
            identity = (found.st_ino, found.st_size, found.st_mtime_ns)
            if identity != self._read_at:
                with self._file.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
                    self._take(file.read(_MAX_BYTES + 1))
                self._read_at = identity
        except OSError:
            self._links, self._sessions, self._read_at = {}, {}, None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change links and sessions as they are in the file now, and write them there."""
        if self._file is None:
            yield
            return
        fd = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(fd, 0o600)
            self._take(file.read(_MAX_BYTES + 1))
            yield
            file.seek(0)
            file.truncate()
            file.write(json.dumps({"version": VERSION, "links": self._links, "sessions": self._sessions}).encode())
            self._read_at = None

    def _take(self, raw: bytes) -> None:
        try:
            found = json.loads(raw) if len(raw) <= _MAX_BYTES else {}
            known = found.get("version") == VERSION
            self._links, self._sessions = (
                {str(digest): float(end) for digest, end in found[name].items()} if known else {}
                for name in ("links", "sessions")
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._links, self._sessions = {}, {}


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
