"""What happens to a classic group and what follows from it, as values: a JoinGroup, its answer, a SyncGroup's, a write."""

from __future__ import annotations

from dataclasses import dataclass, field

Token = object  # names the request that an answer is for; the caller chose it


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    id_first: bool = True  # a new member gets its id before it joins (version 4 on)
    may_skip: bool = True  # the client understands "skip the assignment" (version 9 on)


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; the leader's has everybody's assignment."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer a JoinGroup."""

    token: Token
    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: list[tuple[str, str | None, bytes]] = field(default_factory=list)
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """Answer a SyncGroup."""

    token: Token
    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Write the group's metadata before anything that follows."""


Effect = Joined | Synced | Store
