"""The partitions that one request creates or deletes, counted against its client's quota (KIP-599)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.refused import Refused
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.broker.network.connection import Connection


class Mutations:
    """Counts them one topic after the other, and tells the client in the answer how long it has to wait.

    `strict`: clients of this version of the request understand THROTTLING_QUOTA_EXCEEDED for single topics; those of
    earlier ones get what they asked for, and wait afterwards (ControllerMutationQuotaManager.newQuotaFor).
    """

    def __init__(self, connection: Connection, strict: bool) -> None:
        self._connection = connection
        self._strict = strict
        self._wait_ms = 0

    def count(self, partitions: int) -> None:
        """So many partitions are about to be created or deleted. Raises Refused if they must not be now."""
        broker, connection = self._connection.broker, self._connection
        user = connection.principal.partition(":")[2]
        done, wait = broker.quotas.mutate(user, connection.client_id, partitions, self._strict, broker.now_ms())
        self._wait_ms = max(self._wait_ms, wait)
        if not done:
            raise Refused(
                errors.THROTTLING_QUOTA_EXCEEDED,
                f"The throttling quota has been exceeded: again in {wait} ms (controller_mutation_rate).",
            )

    def tell(self, response: Any) -> None:
        """Say in the answer how long the client must wait; the connection is not read until then."""
        if self._wait_ms:
            response.throttle_time_ms = self._wait_ms
            self._connection.mute(self._wait_ms / 1000)
