"""The session that an authentication has begun: it may end, and be renewed on the same connection (KIP-368)."""

from __future__ import annotations

from typing import Final

# A client may not renew more often: each renewal costs a key derivation (KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS).
RENEWAL_SECONDS: Final = 1.0


class Session:
    """What is known of who is at the other end. Times are seconds on the loop's clock."""

    __slots__ = ("_renewed", "ends", "mechanism", "principal")

    def __init__(self, mechanism: str, principal: str, ends: float, renewed: float | None) -> None:
        self.mechanism = mechanism
        self.principal = principal
        self.ends = ends
        self._renewed = renewed  # when its renewal, if it is one, began

    def ended(self, now: float) -> bool:
        """Whether requests must not come any more."""
        return now > self.ends

    def may_renew(self, now: float) -> bool:
        """Whether the client may show again who it is; late is better than never."""
        return self._renewed is None or now - self._renewed >= RENEWAL_SECONDS
