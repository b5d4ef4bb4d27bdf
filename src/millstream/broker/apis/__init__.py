"""The APIs that this broker serves, with exact version ranges; each module is loaded at its first request.

A module holds `handle(broker, connection, request, version)`. It runs on the event loop and returns the response, a
future of it, or None when the client expects no answer. What it keeps of the request after returning must not be a view
of the request's bytes (only `records` fields are).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from millstream.protocol import errors
from millstream.protocol.messages import APIS as KAFKA
from millstream.protocol.wire import Decoder, Message


class Handler(Protocol):
    """`handle` of a module; its own types of broker, connection, request and answer are checked there."""

    def __call__(
        self, broker: Any, connection: Any, request: Any, version: int, /
    ) -> Message | asyncio.Future[Message] | None:
        """Answer a request."""


class Served:
    """One API: its key, name, module, and the versions that are answered."""

    __slots__ = ("decoders", "first", "flexible", "handler", "key", "last", "module", "name", "request")

    def __init__(self, key: int, last: int | None = None) -> None:
        known = KAFKA[key]
        self.key = key
        self.name = known.name
        self.module = f"a{key:02d}_{known.module}"
        self.first = known.first
        self.last = known.last if last is None else last
        self.flexible = known.flexible
        self.handler: Handler | None = None
        self.request: type[Message] = Message
        self.decoders: Mapping[int, Decoder] = {}

    def load(self) -> Handler:
        """Load the module that handles it and the one of its messages; returns the handler."""
        self.request = KAFKA[self.key].request()
        self.decoders = self.request.DECODERS
        handler: Handler = import_module(f"{__name__}.{self.module}").handle
        self.handler = handler
        return handler

    def unsupported(self) -> Message:
        """KIP-511: the answer, in version 0, to an ApiVersions request of a version that is not served."""
        from millstream.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

        return ApiVersionsResponse(errors.UNSUPPORTED_VERSION, [ApiVersion(self.key, self.first, self.last)])


_SERVED = [
    Served(0),  # Produce
    Served(1),  # Fetch
    Served(2),  # ListOffsets
    Served(3),  # Metadata
    Served(8),  # OffsetCommit
    Served(9),  # OffsetFetch
    Served(10),  # FindCoordinator
    Served(11),  # JoinGroup
    Served(12),  # Heartbeat
    Served(13),  # LeaveGroup
    Served(14),  # SyncGroup
    Served(15),  # DescribeGroups
    Served(16),  # ListGroups
    Served(17),  # SaslHandshake
    Served(18, last=4),  # ApiVersions
    Served(19),  # CreateTopics
    Served(20),  # DeleteTopics
    Served(21),  # DeleteRecords
    Served(22, last=5),  # InitProducerId: version 6 is two-phase commit (KIP-939), not yet stable in Kafka
    Served(23),  # OffsetForLeaderEpoch
    Served(24),  # AddPartitionsToTxn
    Served(25),  # AddOffsetsToTxn
    Served(26),  # EndTxn
    Served(27),  # WriteTxnMarkers
    Served(28),  # TxnOffsetCommit
    Served(29),  # DescribeAcls
    Served(30),  # CreateAcls
    Served(31),  # DeleteAcls
    Served(32),  # DescribeConfigs
    Served(33),  # AlterConfigs
    Served(34),  # AlterReplicaLogDirs
    Served(35),  # DescribeLogDirs
    Served(36),  # SaslAuthenticate
    Served(37),  # CreatePartitions
    Served(42),  # DeleteGroups
    Served(43),  # ElectLeaders
    Served(44),  # IncrementalAlterConfigs
    Served(45),  # AlterPartitionReassignments
    Served(46),  # ListPartitionReassignments
    Served(47),  # OffsetDelete
    Served(48),  # DescribeClientQuotas
    Served(49),  # AlterClientQuotas
    Served(50),  # DescribeUserScramCredentials
    Served(51),  # AlterUserScramCredentials
    Served(55),  # DescribeQuorum
    Served(60),  # DescribeCluster
    Served(61),  # DescribeProducers
    Served(65),  # DescribeTransactions
    Served(66),  # ListTransactions
    Served(68),  # ConsumerGroupHeartbeat
    Served(69),  # ConsumerGroupDescribe
    Served(74),  # ListConfigResources
    Served(75),  # DescribeTopicPartitions
    Served(76),  # ShareGroupHeartbeat
    Served(77),  # ShareGroupDescribe
    Served(78),  # ShareFetch
    Served(79),  # ShareAcknowledge
    Served(90),  # DescribeShareGroupOffsets
    Served(91),  # AlterShareGroupOffsets
    Served(92),  # DeleteShareGroupOffsets
]
APIS = {served.key: served for served in _SERVED}
