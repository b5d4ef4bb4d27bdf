"""What a topic does when producers outrun its consumers, in numbers: what was lost, who waited, and for how long.

`millstream.overload` of a topic says which it is:

- `buffer`: everything is kept on disk until retention takes it.
- `drop`: a ring of the newest. Whole segments go as soon as the rest holds `retention.bytes` (or they are older than
  `retention.ms`): at the append that makes them go, not at the next round of maintenance. Segments are at most an
  eighth of the ring, so that it holds `retention.bytes` and at most one eighth more (or one `max.message.bytes`).
- `backpressure`: the broker slows producers down, then has them wait (see broker/overload.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

POLICIES: Final = ("buffer", "drop", "backpressure")
PIECES: Final = 8
"""Segments that the ring of a `drop` topic is divided into: more make it follow its bound closer, and more files."""


@dataclass(slots=True)
class Counters:
    """Loss and waiting of one topic. What was dropped survives restarts; the rest counts since the log was opened.

    Records are counted as offsets, so gaps that compaction or transaction markers left count as well.
    """

    dropped_records: int = 0
    """Records that the ring has overwritten, whether or not somebody had read them."""
    dropped_bytes: int = 0
    throttled_requests: int = 0
    """Produce requests answered with a throttle time."""
    throttled_ms: int = 0
    blocked_requests: int = 0
    """Appends that had to wait for consumers; those that wait now are among them."""
    blocked_ms: int = 0
    """How long those waited that wait no longer."""
    timed_out_requests: int = 0
    """Appends that waited until their request's time was over, and were answered with a retriable error."""
    refused_requests: int = 0
    """Appends that were answered with that error at once, because too many waited already."""
    waiting_requests: int = 0
    """Appends that wait now."""
    waiting_bytes: int = 0

    def values(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)
