"""Certificates that are replaced while the broker runs: their files are read again when they change, without a restart."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from millstream.broker.security.tls import TlsError, files, server_context

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.broker.security.listeners import Listener
    from millstream.broker.settings import Settings

_log = logging.getLogger(__name__)
# How often the files are looked at.
LOOK_SECONDS = 5.0

State = tuple[tuple[int, int, int, int] | None, ...]


class Certificates:
    """The files of ssl.keystore.location and ssl.truststore.location, as they were when they were read.

    Make it before they are read. New connections get the new certificates; those that there are stay as they are.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._read = self._failed = self._state()

    def look(self, listeners: Iterable[Listener]) -> bool:
        """Read files that have changed (it blocks); whether the listeners have new ones. What cannot be used is logged once."""
        state = self._state()
        if state == self._read:
            return False
        try:
            for listener in listeners:
                if listener.context is not None:
                    listener.context = server_context(self._settings)
        except TlsError as e:
            if state != self._failed:
                _log.error("new certificates cannot be used, the old ones stay: %s", e)
            self._failed = state
            return False
        self._read = self._failed = state
        _log.info("certificates have changed and are read again")
        return True

    def _state(self) -> State:
        """What tells a file from its successor; a link leads to the file."""
        return tuple(_stat(path) for path in files(self._settings))


def _stat(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
