"""Who may come in, and how fast: bounds on connections and on new ones per second (KIP-612), before a byte is read."""

from __future__ import annotations

import logging
import socket
from collections import Counter

from millstream.broker import limits
from millstream.broker.broker import Broker
from millstream.broker.security.rates import Rate

_log = logging.getLogger(__name__)


class Arrivals:
    """Decides about sockets that were just accepted.

    One too many is closed. One that comes too soon after others of its address is closed a little later: its client, which
    will try again at once, waits for an answer that long (Acceptor.throttledSockets in Kafka). All addresses together
    are slowed down by accepting later.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = settings = broker.settings
        self._window_ms = settings.integer("quota.window.size.seconds") * 1000
        self._rate = Rate(settings.integer("quota.window.size.seconds"), settings.integer("quota.window.num"))
        self._full = False
        self._held: set[socket.socket] = set()

    def welcome(self, sock: socket.socket, address: str) -> bool:
        """Whether a connection from this address is served; if not, its socket is taken care of."""
        crowded = self._crowded(address)
        if crowded:
            if not self._full:
                _log.error("%s is reached: further clients are turned away", crowded)
            self._full = True
            sock.close()
            return False
        self._full = False
        now = self._broker.now_ms()
        wait = self._broker.quotas.connect(address, now)
        if wait:
            _log.debug("%s connects too often (connection_creation_rate)", address)
            self._hold(sock, wait / 1000)
            return False
        self._rate.add(1, now)
        return True

    def pause(self) -> float:
        """For how many seconds nobody else is let in, for max.connection.creation.rate."""
        most = self._settings.integer("max.connection.creation.rate")
        return min(self._rate.wait(most, self._broker.now_ms()), self._window_ms) / 1000

    def close(self) -> None:
        """Close the sockets that are held."""
        for sock in self._held:
            sock.close()
        self._held.clear()

    def _crowded(self, address: str) -> str | None:
        """The setting that forbids one more connection from an address, if one does."""
        connections = self._broker.connections
        if len(connections) >= self._settings.integer("max.connections"):
            return "max.connections"
        most = self._settings.integer("max.connections.per.ip")
        if most < len(connections) + 1 and (Counter(connection.address for connection in connections)[address] >= most):
            return "max.connections.per.ip"
        return None

    def _hold(self, sock: socket.socket, seconds: float) -> None:
        if len(self._held) >= limits.MAX_HELD:
            sock.close()
            return
        self._held.add(sock)
        self._broker.loop.call_later(seconds, self._let_go, sock)

    def _let_go(self, sock: socket.socket) -> None:
        if sock in self._held:
            self._held.discard(sock)
            sock.close()
