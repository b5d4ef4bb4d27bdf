"""SaslHandshake (key 17), versions 0-1: the client chooses a mechanism; see `security/gate.py`.

On a listener without SASL, or after authentication that does not have to be renewed (or was a second ago), ILLEGAL_SASL_STATE.

Version notes: 0 is followed by bare tokens, 1 by SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: SaslHandshakeRequest, version: int
) -> SaslHandshakeResponse:
    """Whether the mechanism is enabled, and which are."""
    if connection.gate is None:
        return SaslHandshakeResponse(errors.ILLEGAL_SASL_STATE, [])
    error = connection.gate.handshake(request.mechanism, version)
    return SaslHandshakeResponse(error, broker.settings.names("sasl.enabled.mechanisms"))
