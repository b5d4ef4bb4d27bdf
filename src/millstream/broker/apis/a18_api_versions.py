"""ApiVersions (key 18), versions 0-4: which APIs and versions are served.

A version that is not served is answered in version 0 with UNSUPPORTED_VERSION and our range (KIP-511). Produce is
listed from version 0 although requests below 3 are refused: librdkafka derives from it which codecs it may use (KIP-896).
Gaps: version 5 (cluster and node id checks, KIP-1242). Features: transaction.version 2, group.version 1, share.version 1.

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 is flexible and names the client's
software (KIP-511), 4 allows features of version 0 (KIP-1022).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millstream.broker.apis import APIS
from millstream.protocol import errors
from millstream.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
# What a feature's level means is Kafka's: https://kafka.apache.org/documentation/#upgrade
FEATURES: dict[str, tuple[int, int]] = {"group.version": (0, 1), "share.version": (0, 1), "transaction.version": (0, 2)}


def handle(broker: Broker, connection: Connection, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    """The served ranges."""
    if version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not _NAME.fullmatch(text):
                return ApiVersionsResponse(errors.INVALID_REQUEST)
        connection.client_software = f"{request.client_software_name} {request.client_software_version}"
    keys = [ApiVersion(a.key, 0 if a.key == 0 else a.first, a.last) for a in APIS.values()]
    supported = [SupportedFeatureKey(name, low, high) for name, (low, high) in FEATURES.items()]
    finalized = [FinalizedFeatureKey(name, high, high) for name, (_, high) in FEATURES.items()]
    if version < 3:
        return ApiVersionsResponse(0, keys)
    return ApiVersionsResponse(0, keys, 0, supported, 0, finalized)
