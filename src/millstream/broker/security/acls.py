"""Access control lists and what follows from them: Kafka's semantics (StandardAuthorizer, KIP-801), as values.

An ACL allows or denies a principal on a host an operation on resources: one by name (literal), all (literal `*`), or
those whose name begins so (prefixed). Deny wins over allow. Allowing read, write, delete or alter implies describe, and
alter configs implies describe configs. A resource without any ACL is open only with allow.everyone.if.no.acl.found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple


class Resource(IntEnum):
    """Kafka's ResourceType."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """Kafka's PatternType; ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's AclPermissionType."""

    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER = "kafka-cluster"
ANONYMOUS = "User:ANONYMOUS"
EVERYBODY = "User:*"
WILDCARD = "*"

_DESCRIBES = frozenset({Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})
_DESCRIBES_CONFIGS = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
# Operations that make sense on a kind of resource (AclEntry.supportedOperations in Kafka).
OPERATIONS: dict[int, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    Resource.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    Resource.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    Resource.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip


class Acl(NamedTuple):
    """One entry, in Kafka's numbers."""

    resource: int
    pattern: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class Filter(NamedTuple):
    """What a DescribeAcls or DeleteAcls request looks for; None and ANY match everything."""

    resource: int
    pattern: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Whether an entry is looked for (AccessControlEntryFilter and ResourcePatternFilter in Kafka)."""
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._name_matches(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _name_matches(self, acl: Acl) -> bool:
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != Pattern.MATCH:
            return self.name == acl.name
        if acl.pattern == Pattern.LITERAL:
            return acl.name in (self.name, WILDCARD)
        return self.name.startswith(acl.name)


class Acls:
    """A set of entries, found by the resource that they are about."""

    def __init__(self) -> None:
        self._literal: dict[tuple[int, str], dict[Acl, None]] = {}
        self._prefixed: dict[int, dict[Acl, None]] = {}

    def replace(self, acls: Iterable[Acl]) -> None:
        """Hold these entries instead."""
        self._literal.clear()
        self._prefixed.clear()
        for acl in acls:
            self.add(acl)

    def all(self) -> Iterator[Acl]:
        """Every entry."""
        for found in (*self._literal.values(), *self._prefixed.values()):
            yield from found

    def add(self, acl: Acl) -> None:
        """Add an entry; one that is there already stays."""
        if acl.pattern == Pattern.PREFIXED:
            self._prefixed.setdefault(acl.resource, {})[acl] = None
        else:
            self._literal.setdefault((acl.resource, acl.name), {})[acl] = None

    def remove(self, acl: Acl) -> None:
        """Remove an entry that is there."""
        if acl.pattern == Pattern.PREFIXED:
            del self._prefixed[acl.resource][acl]
        else:
            found = self._literal[acl.resource, acl.name]
            del found[acl]
            if not found:
                del self._literal[acl.resource, acl.name]

    def about(self, resource: int, name: str) -> Iterator[Acl]:
        """The entries whose pattern covers a resource."""
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), ())
        for acl in self._prefixed.get(resource, ()):
            if name.startswith(acl.name):
                yield acl

    def of_type(self, resource: int) -> Iterator[Acl]:
        """The entries about a kind of resource."""
        for (kind, _), found in self._literal.items():
            if kind == resource:
                yield from found
        yield from self._prefixed.get(resource, ())


def allowed(acls: Acls, principal: str, host: str, operation: int, resource: int, name: str, otherwise: bool) -> bool:
    """Whether the entries let a principal do something; `otherwise` when there is no entry about the resource."""
    none = True
    granted = False
    for acl in acls.about(resource, name):
        none = False
        if not _concerns(acl, principal, host) or not _covers(acl, operation):
            continue
        if acl.permission == Permission.DENY:
            return False
        granted = True
    return otherwise if none else granted


def allowed_somewhere(acls: Acls, principal: str, host: str, operation: int, resource: int, otherwise: bool) -> bool:
    """Whether there is any resource of a kind on which the operation is allowed (Authorizer.authorizeByResourceType)."""
    mine = [a for a in acls.of_type(resource) if _concerns(a, principal, host) and _covers(a, operation)]
    denied = [a for a in mine if a.permission == Permission.DENY]
    literals = {a.name for a in denied if a.pattern == Pattern.LITERAL}
    prefixes = tuple(a.name for a in denied if a.pattern == Pattern.PREFIXED)
    if WILDCARD in literals:
        return False
    if otherwise:
        return True
    for acl in mine:
        if acl.permission == Permission.DENY:
            continue
        if acl.pattern == Pattern.LITERAL and acl.name == WILDCARD:
            return True
        hidden = any(acl.name.startswith(p) for p in prefixes) or (
            acl.pattern == Pattern.LITERAL and acl.name in literals
        )
        if not hidden:
            return True
    return False


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, EVERYBODY) and acl.host in (host, WILDCARD)


def _covers(acl: Acl, operation: int) -> bool:
    if acl.operation in (operation, Operation.ALL):
        return True
    if acl.permission == Permission.DENY:
        return False
    if operation == Operation.DESCRIBE:
        return acl.operation in _DESCRIBES
    return operation == Operation.DESCRIBE_CONFIGS and acl.operation in _DESCRIBES_CONFIGS
