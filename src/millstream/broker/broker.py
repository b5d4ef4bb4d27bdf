"""What the APIs share: the core, the coordinators, topics, who may do what, connections, and the budget of request bytes."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.archive import Archives
from millstream.broker.core import Core
from millstream.broker.dynamic import Dynamic
from millstream.broker.fetch_sessions import FetchSessions
from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.purgatory import Purgatory
from millstream.broker.refused import Refused
from millstream.broker.security.authorizer import Authorizer
from millstream.broker.security.quotas import Quotas
from millstream.broker.security.store import AccessStore
from millstream.broker.share.sessions import ShareSessions
from millstream.broker.topics import INTERNAL, check_count, check_name
from millstream.broker.transactions.coordinator import TransactionCoordinator
from millstream.protocol import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.broker.network.connection import Connection
    from millstream.broker.network.reader import Reader
    from millstream.broker.security.listeners import Listener
    from millstream.log import Log, Topic

_log = logging.getLogger(__name__)


class Broker(Core):
    """One running broker."""

    def __init__(
        self,
        log: Log,
        access: AccessStore,
        dynamic: Dynamic,
        loop: asyncio.AbstractEventLoop,
        listeners: list[Listener],
    ) -> None:
        super().__init__(log, dynamic, loop)
        settings = self.settings
        self.access = access
        self.listeners = listeners
        self.authorizer: Authorizer | None = None
        if settings.values["authorizer.class.name"]:
            super_users = frozenset(u.strip() for u in settings.values["super.users"].split(";") if u.strip())
            self.authorizer = Authorizer(access.acls, super_users, settings.boolean("allow.everyone.if.no.acl.found"))
        windows = [
            (settings.integer(f"{which}.window.size.seconds"), settings.integer(f"{which}.window.num"))
            for which in ("quota", "controller.quota")
        ]
        self.quotas = Quotas(access.quotas, windows[0], windows[1])
        self.passwords = ThreadPoolExecutor(1, thread_name_prefix="passwords")
        self.checking = ThreadPoolExecutor(limits.UNPACKING_THREADS, thread_name_prefix="checking")
        self.unauthenticated: dict[
            Connection, None
        ] = {}  # connections that have not shown who they are, the oldest first
        self.node_id = settings.integer("node.id")
        self.max_frame = settings.integer("socket.request.max.bytes")
        self.read_view = memoryview(bytearray(limits.READ_BYTES))
        self.connections: set[Connection] = set()
        self.unfinished = 0  # connections that hold a large unfinished request
        self.backpressured: deque[Reader] = deque()  # those of them that wait for room
        self.fetch_sessions = FetchSessions()
        self.archives = Archives(loop, log)
        self.groups = GroupCoordinator(self)
        self.share_sessions = ShareSessions(self, self.groups.share_partitions)
        self.transactions = TransactionCoordinator(self, self.groups.commits)
        self.purgatory = Purgatory(loop, self.groups.directory)
        self._budget = settings.integer("queued.max.request.bytes")
        self._ids: dict[bytes, Topic] = {}

    def access_changed(self) -> None:
        """Access control lists or quotas have changed."""
        if self.authorizer is not None:
            self.authorizer.changed()
        self.quotas.changed()

    # ---- topics

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """The topic of a 16-byte id."""
        found = self._ids.get(topic_id)
        if found is None:
            found = self.log.topic(uuid.UUID(bytes=topic_id))
            if found is not None:
                self._ids[topic_id] = found
        return found

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic; -1 partitions: num.partitions. Raises Refused or LogError."""
        check_name(name)
        if name in INTERNAL:
            raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"{name} is internal: the broker makes it itself")
        if partitions == -1:
            partitions = self.settings.integer("num.partitions")
        check_count(partitions, self.partition_count())
        topic = self.log.create(name, partitions, dict(config))
        self.topics_version += 1
        _log.info("topic %s created, %d partitions", name, partitions)
        return topic

    def add_partitions(self, topic: Topic, total: int) -> None:
        """Give a topic more partitions. Raises LogError."""
        self.log.add_partitions(topic.name, total)
        self.topics_version += 1

    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.log.topics.values())

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and what groups committed for it. Raises LogError."""
        watching = [(partition, set(partition.listeners)) for partition in topic.partitions]
        self._ids.pop(topic.id.bytes, None)
        self.log.delete(topic.name)
        self.topics_version += 1
        _log.info("topic %s deleted", topic.name)
        self.groups.commits.topic_deleted(topic.name)
        self.groups.share.topic_deleted(topic.id.bytes)
        self.transactions.topic_deleted(topic.name)
        for partition, listeners in watching:  # long polls find out that it is gone
            for listener in listeners:
                listener(partition)

    # ---- connections and their budget

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self.connections.discard(connection)
        self.unauthenticated.pop(connection, None)
        self.share_sessions.disconnected(connection)

    def must_authenticate(self, connection: Connection) -> None:
        """A connection has yet to show who it is; there is room for so many, the oldest make way."""
        self.unauthenticated[connection] = None
        if len(self.unauthenticated) > limits.MAX_UNAUTHENTICATED:
            next(iter(self.unauthenticated)).close("not authenticated, it made way for newer connections", quiet=True)

    def authenticated(self, connection: Connection) -> None:
        """A connection has shown who it is."""
        self.unauthenticated.pop(connection, None)

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes of unfinished requests may be held."""
        return self._budget >= size

    def make_room(self, size: int) -> bool:
        """Like has_room, but gives up unfinished requests that wait for room themselves, the oldest first."""
        while self._budget < size and self.backpressured:
            self.backpressured.popleft().close("unfinished, it was given up for others (queued.max.request.bytes)")
        return self._budget >= size

    def backpressure(self, connection: Reader) -> None:
        """A connection with a large unfinished request waits for room. If all that hold some wait, one must go."""
        self.backpressured.append(connection)
        if len(self.backpressured) >= self.unfinished:
            self.backpressured.popleft().close("unfinished, it was given up for others (queued.max.request.bytes)")

    def charge(self, size: int) -> None:
        """Take from the budget of request bytes, or give back; those who wait may go on."""
        self._budget -= size
        while size < 0 and self.backpressured and self.backpressured[0].feed():
            self.backpressured.popleft()

    def sweep(self, now: float) -> None:
        """Close what idles or takes too long."""
        idle = self.settings.seconds("connections.max.idle.ms")
        for connection in list(self.connections):
            connection.close_if_overdue(now, idle)

    def close(self) -> None:
        """Close every connection, end the coordinators, wait for fsyncs; the log stays open."""
        for connection in list(self.connections):
            connection.close("the broker ends", quiet=True)
        self.purgatory.close()
        self.groups.close()
        self.transactions.close()
        self.flusher.close()
        self.passwords.shutdown(wait=True, cancel_futures=True)
        self.checking.shutdown(wait=True, cancel_futures=True)
        self.archives.close()
