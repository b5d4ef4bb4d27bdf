"""A query's progress as plain facts: what Spark reports after each batch, added up over the run. Pure: values in, values out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["starting", "running", "restarting", "failed", "stopped"]
Offsets = dict[str, dict[str, int]]  # topic -> partition, as text -> next offset

# Spark's word for "no event seen yet".
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass
class Facts:
    """What the status topic says of a query; the numbers are totals of this run unless said otherwise."""

    mode: str
    state: State = "starting"
    error: str | None = None
    batch: int = -1
    input_rows: int = 0
    output_rows: int | None = None
    rows_per_second: float = 0.0
    watermark: str | None = None
    dropped: int = 0
    dead: int | None = None
    batch_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    state_rows: int | None = None

    def take(self, progress: Mapping[str, Any]) -> None:
        """Add one progress report of Spark's (its JSON object)."""
        self.state, self.error = "running", None
        self.batch = progress["batchId"]
        self.input_rows += progress.get("numInputRows", 0)
        self.rows_per_second = round(_number(progress.get("processedRowsPerSecond")), 1)
        self.batch_ms = progress.get("durationMs", {}).get("triggerExecution", progress.get("batchDuration", 0))
        written = progress.get("sink", {}).get("numOutputRows", -1)
        if written >= 0:
            self.output_rows = (self.output_rows or 0) + written
            if self.dead is not None:
                self.dead += written
        watermark = progress.get("eventTime", {}).get("watermark")
        if watermark and watermark != _NO_WATERMARK:
            self.watermark = watermark
        if operators := progress.get("stateOperators"):
            self.state_rows = sum(o["numRowsTotal"] for o in operators)
        self.offsets.update(next_offsets(progress))

    def wrote(self, rows: int) -> None:
        """Count rows that a batch function wrote itself, which Spark does not see."""
        self.output_rows = (self.output_rows or 0) + rows

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as the status topic has them."""
        facts = dict(vars(self))
        if self.dead is None:
            del facts["dead"]
        return facts


def next_offsets(progress: Mapping[str, Any], which: str = "endOffset") -> Offsets:
    """Return the offsets that a progress report says come next (or, with "startOffset", that the batch began at)."""
    found: Offsets = {}
    for source in progress.get("sources", ()):
        offsets = source.get(which)
        if isinstance(offsets, str):
            offsets = json.loads(offsets)
        if isinstance(offsets, dict):
            found.update({topic: dict(parts) for topic, parts in offsets.items() if isinstance(parts, dict)})
    return found


def maybe_late(progress: Mapping[str, Any]) -> bool:
    """Tell whether the batch dropped something as late. Spark's number is of no use beyond that: it counts groups."""
    return any(o.get("numRowsDroppedByWatermark", 0) for o in progress.get("stateOperators", ()))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and value == value and abs(value) != float("inf") else 0.0
