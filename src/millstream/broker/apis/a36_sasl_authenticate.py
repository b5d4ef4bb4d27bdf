"""SaslAuthenticate (key 36), versions 0-2: a token of the SASL exchange; see `security/gate.py`.

The last answer of an exchange says (from version 1 on) how long it counts: connections.max.reauth.ms.

Version notes: 1 tells how long the session counts (KIP-368), 2 is flexible.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: SaslAuthenticateRequest, version: int
) -> SaslAuthenticateResponse | asyncio.Future[SaslAuthenticateResponse]:
    """The next token of the server."""
    if connection.gate is None:
        text = "SaslAuthenticate request received after successful authentication"
        return SaslAuthenticateResponse(errors.ILLEGAL_SASL_STATE, text)
    return connection.gate.authenticate(request.auth_bytes)
