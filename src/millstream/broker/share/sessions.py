"""Share sessions (KIP-932): a member names its partitions once; with its session ends what it has acquired.

A session belongs to a member of a group on one connection, and ends with that. Each request of it carries the next epoch: one
that comes again, or is lost, shows.

Source: Kafka's ShareSessionCache, SharePartitionManager (newContext, acknowledgeSessionUpdate).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.refused import Refused
from millstream.broker.share.coordinator import SharePartitions
from millstream.protocol import errors

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 0x7FFFFFFF

Place = tuple[bytes, int]  # topic id and partition


class ShareSession:
    """What a member follows. `epoch` is what its next request must carry."""

    def __init__(self, group_id: str, member: str, connection: Hashable) -> None:
        self.group_id = group_id
        self.member = member
        self.connection = connection
        self.epoch = 1
        self.places: dict[Place, None] = {}

    def turn(self) -> list[Place]:
        """The partitions, another one first each time, so that none starves."""
        places = list(self.places)
        first = self.epoch % len(places) if places else 0
        return places[first:] + places[:first]


class ShareSessions:
    """All sessions, bounded in number and in partitions."""

    def __init__(self, core: Core, partitions: SharePartitions) -> None:
        self._core = core
        self._partitions = partitions
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of: dict[Hashable, dict[tuple[str, str], None]] = {}
        self._places = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def opened(self, group_id: str, member: str, connection: Hashable) -> ShareSession:
        """A new session (epoch 0), in place of the member's old one, whose records stay its own. Raises Refused."""
        key = (group_id, member)
        if key in self._sessions:
            self._forget(self._sessions[key])
        if len(self._sessions) >= self._core.settings.integer("group.share.max.share.sessions"):
            raise Refused(errors.SHARE_SESSION_LIMIT_REACHED, "The limit of share sessions has been reached.")
        session = self._sessions[key] = ShareSession(group_id, member, connection)
        self._of.setdefault(connection, {})[key] = None
        return session

    def known(self, group_id: str, member: str, epoch: int) -> ShareSession:
        """The session of a request that is not its first; the next one must carry the epoch behind. Raises Refused."""
        session = self._sessions.get((group_id, member))
        if session is None:
            raise Refused(errors.SHARE_SESSION_NOT_FOUND, "The share session was not found.")
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                text = f"The share session's epoch is {session.epoch}, not {epoch}."
                raise Refused(errors.INVALID_SHARE_SESSION_EPOCH, text)
            session.epoch = epoch + 1 if epoch < MAX_EPOCH else 1
        return session

    def change(self, session: ShareSession, more: Iterable[Place], gone: Iterable[Place]) -> None:
        """Take over what a request adds and forgets. Raises Refused."""
        before = len(session.places)
        for place in gone:
            session.places.pop(place, None)
        session.places.update(dict.fromkeys(more))
        self._places += len(session.places) - before
        if self._places > limits.MAX_SESSION_PARTITIONS:
            self.close(session)
            raise Refused(errors.SHARE_SESSION_LIMIT_REACHED, "Share sessions hold too many partitions.")

    def close(self, session: ShareSession) -> None:
        """The session ends: what the member has acquired is there for others."""
        if self._sessions.get((session.group_id, session.member)) is session:
            self._forget(session)
            self._partitions.release(session.group_id, session.member)

    def _forget(self, session: ShareSession) -> None:
        key = (session.group_id, session.member)
        del self._sessions[key]
        self._places -= len(session.places)
        of = self._of[session.connection]
        del of[key]
        if not of:
            del self._of[session.connection]

    def disconnected(self, connection: Hashable) -> None:
        """A connection is closed, and so are its sessions."""
        for key in list(self._of.get(connection, ())):
            self.close(self._sessions[key])
