"""Which topics consumers of a classic group follow: read from the metadata that they send when they join."""

from collections.abc import Iterable

from millstream.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.protocol.wire import ProtocolError


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics of the members' subscriptions; None when one cannot be read (ConsumerProtocol.deserializeVersion)."""
    topics: set[str] = set()
    for data in metadata:
        try:
            if len(data) < 2:
                raise ProtocolError("a subscription without its version")
            if int.from_bytes(data[:2], "big", signed=True) < 0:
                raise ProtocolError("a subscription of a negative version")
            # The beginning is the same in all versions.
            topics.update(ConsumerProtocolSubscription.decode(data, 0, 2).topics)
        except ProtocolError:
            return None
    return frozenset(topics)
