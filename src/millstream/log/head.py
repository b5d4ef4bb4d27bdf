"""The header of a batch as the plain tuple that `records.HEADER` unpacks, and the names of its places.

Appends, reads, recovery and compaction look at every header of a file: `records.Header` would cost them four times as much.
"""

from __future__ import annotations

from typing import Final

from millstream.protocol.records import Header

Head = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of `records.Header`, in its order."""

BASE_OFFSET: Final = Header._fields.index("base_offset")
LENGTH: Final = Header._fields.index("length")
LEADER_EPOCH: Final = Header._fields.index("leader_epoch")
MAGIC_BYTE: Final = Header._fields.index("magic")
CRC: Final = Header._fields.index("crc")
ATTRIBUTES: Final = Header._fields.index("attributes")
LAST_DELTA: Final = Header._fields.index("last_offset_delta")
BASE_TIMESTAMP: Final = Header._fields.index("base_timestamp")
MAX_TIMESTAMP: Final = Header._fields.index("max_timestamp")
PRODUCER_ID: Final = Header._fields.index("producer_id")
PRODUCER_EPOCH: Final = Header._fields.index("producer_epoch")
BASE_SEQUENCE: Final = Header._fields.index("base_sequence")
RECORD_COUNT: Final = Header._fields.index("record_count")
