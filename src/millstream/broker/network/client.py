"""Who is at the other end of a connection: what they are called, what they may do, what they use of their quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.network.endpoint import Endpoint, Socket
from millstream.broker.security.acls import ANONYMOUS, OPERATIONS
from millstream.broker.security.session import Session

if TYPE_CHECKING:
    from millstream.broker.broker import Broker


class Client(Endpoint):
    """The client of a connection."""

    def __init__(self, broker: Broker, sock: Socket, peer: str) -> None:
        super().__init__(broker, sock)
        self.peer = peer
        self.address = peer.rpartition(":")[0]
        self.host = "/" + self.address  # as Kafka describes a member's host
        self.client_id = ""
        self.client_software = ""
        self.principal = ANONYMOUS
        self.session: Session | None = None  # that ends, if it does

    def count(self, key: str, amount: float) -> int:
        """Count something against the client's quota; for how many milliseconds it must wait."""
        user = self.principal.partition(":")[2]
        return self.broker.quotas.record(key, user, self.client_id, amount, self.broker.now_ms())

    def may(self, operation: int, resource: int, name: str) -> bool:
        """Whether the client may do an operation on a resource."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allowed(self.principal, self.address, operation, resource, name)

    def may_somewhere(self, operation: int, resource: int) -> bool:
        """Whether there is any resource of a kind on which the client may do an operation."""
        authorizer = self.broker.authorizer
        return authorizer is None or authorizer.allowed_somewhere(self.principal, self.address, operation, resource)

    def operations(self, resource: int, name: str) -> int:
        """What the client may do with a resource, as a set of bits (KIP-430)."""
        authorizer = self.broker.authorizer
        if authorizer is None:
            return sum(1 << operation for operation in OPERATIONS[resource])
        return authorizer.operations(self.principal, self.address, resource, name)
