"""Answers whether a client may do something, from the stored access control lists; remembers its answers."""

from __future__ import annotations

from millstream.broker.security.acls import OPERATIONS, Acls, allowed, allowed_somewhere

# Answers kept; at the bound all are forgotten and found again. Stops clients that ask for ever new names.
MAX_ANSWERS = 100_000


class Authorizer:
    """Kafka's StandardAuthorizer. `super_users` ("User:name") may do everything."""

    def __init__(self, acls: Acls, super_users: frozenset[str], allow_if_none: bool) -> None:
        self._acls = acls
        self._super = super_users
        self._allow_if_none = allow_if_none
        self._answers: dict[tuple[str, str, int, int, str], bool] = {}

    def changed(self) -> None:
        """The lists have changed."""
        self._answers.clear()

    def allowed(self, principal: str, host: str, operation: int, resource: int, name: str) -> bool:
        """Whether a principal on a host may do an operation on a resource."""
        key = (principal, host, operation, resource, name)
        answer = self._answers.get(key)
        if answer is None:
            answer = principal in self._super or allowed(
                self._acls, principal, host, operation, resource, name, self._allow_if_none
            )
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def allowed_somewhere(self, principal: str, host: str, operation: int, resource: int) -> bool:
        """Whether there is a resource of a kind on which a principal may do an operation."""
        if principal in self._super:
            return True
        return allowed_somewhere(self._acls, principal, host, operation, resource, self._allow_if_none)

    def operations(self, principal: str, host: str, resource: int, name: str) -> int:
        """What a principal may do with a resource, as a set of bits (KIP-430)."""
        return sum(1 << o for o in OPERATIONS[resource] if self.allowed(principal, host, o, resource, name))
