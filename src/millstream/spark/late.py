"""Events that came too late: which input rows a batch dropped, exactly, by offset.

Spark says only that a batch dropped something, and counts groups after partial aggregation. So exactly that batch's offset
range is read once more, decoded, and led through the function up to its first grouping, where Spark compares a row's window
with the watermark. The watermark that decides in batch N is the one with which batch N-1 ran (Spark's WatermarkPropagator:
late events are judged by the previous batch's), which the checkpoint's offset log has.

What is found is kept, one small file per batch, so that a batch which is run again is not counted twice and a replay can leave
out exactly what was left out live.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.settings import Kafka
from millstream.settings.files import replace
from millstream.spark.decode import ORIGIN, events
from millstream.spark.kafka import Ranges, read_range
from millstream.spark.windows import is_window, with_watermark

# Of the files: {"version", "batch", "watermark" (epoch ms), "rows", "offsets": {topic: {partition: [[from, to], …]}} or null}
VERSION = 1
MAX_RANGES = 100_000  # of offsets kept per batch; beyond, the file has the count alone and says so

Runs = dict[str, dict[str, list[list[int]]]]  # topic -> partition -> [from, to) …


@dataclass(frozen=True)
class Batch:
    """A batch that dropped something: its number, the offsets it read, and the watermark (epoch ms) that judged it."""

    number: int
    ranges: Ranges
    watermark: int


def watermark_of(checkpoint: Path, batch: int) -> int | None:
    """Return the watermark, in epoch milliseconds, by which `batch` judges lateness, or None when the log has it no more."""
    if batch == 0:
        return 0
    try:
        lines = (checkpoint / "offsets" / str(batch - 1)).read_text().splitlines()
        return int(json.loads(lines[1])["batchWatermarkMs"])
    except (OSError, IndexError, KeyError, ValueError):
        return None


def find(spark: SparkSession, kafka: Kafka, query: Query, batch: Batch) -> DataFrame:
    """Return topic, partition and offset of the input rows that the batch dropped as late, as a plain frame."""
    topic = cast(Topic, query.streams[0])
    return dropped(events(read_range(spark, kafka, batch.ranges), topic), query, topic, batch.watermark)


def dropped(rows: DataFrame, query: Query, topic: Topic, watermark: int) -> DataFrame:
    """Return the origins of those `rows` (of the topic's events) that the query's function drops at a watermark."""
    limit = F.timestamp_millis(F.lit(watermark))
    grouped = _before_grouping(query.function(with_watermark(rows, topic)))
    windows = [f.name for f in grouped.schema.fields if is_window(f.dataType)] if grouped is not None else []
    if grouped is not None and windows and ORIGIN in grouped.columns:
        late = grouped.where(F.col(f"`{windows[-1]}`.end") <= limit)
    else:  # no window to judge by: Spark compares the event's own time
        late = rows.where(F.col(f"`{topic.event_time}`") <= limit)
    return late.select(f"{ORIGIN}.topic", f"{ORIGIN}.partition", f"{ORIGIN}.offset").distinct()


def _before_grouping(result: DataFrame) -> DataFrame | None:
    """Return the rows that go into the function's first grouping, or None when it has none."""
    plan: Any = result._jdf.queryExecution().analyzed()
    first = None
    while True:
        if plan.nodeName() in ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark"):
            first = plan
        children = plan.children()
        if children.size() != 1:
            break
        plan = children.apply(0)
    if first is None:
        return None
    spark = result.sparkSession
    inner = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, first.children().apply(0))  # type: ignore[union-attr]
    return DataFrame(inner, spark)


class Record:
    """The files of one query's dropped rows. `total` is their number over all of its runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.total = 0
        self._rows: dict[int, int] = {}
        for path in folder.glob("*.json") if folder.is_dir() else ():
            content = json.loads(path.read_text())
            self._rows[content["batch"]] = content["rows"]
        self.total = sum(self._rows.values())

    def add(self, batch: Batch, origins: Iterable[tuple[str, int, int]]) -> int:
        """Keep a batch's dropped rows and return their number; a batch that is here already is replaced."""
        found = sorted(origins)
        runs = as_runs(found)
        kept = sum(len(r) for parts in runs.values() for r in parts.values()) <= MAX_RANGES
        self._folder.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "batch": batch.number,
            "watermark": batch.watermark,
            "rows": len(found),
            "offsets": runs if kept else None,
        }
        replace(self._folder / f"{batch.number}.json", json.dumps(content).encode())
        self._rows[batch.number] = len(found)
        self.total = sum(self._rows.values())
        return len(found)


def as_runs(origins: Sequence[tuple[str, int, int]]) -> Runs:
    """Return sorted (topic, partition, offset) as runs [from, to) per topic and partition."""
    runs: Runs = {}
    for topic, partition, offset in origins:
        parts = runs.setdefault(topic, {}).setdefault(str(partition), [])
        if parts and parts[-1][1] == offset:
            parts[-1][1] = offset + 1
        else:
            parts.append([offset, offset + 1])
    return runs
