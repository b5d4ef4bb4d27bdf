"""Events that came too late: which input rows a batch dropped, exactly, by offset.

Spark says only that a batch dropped something, and counts groups after partial aggregation. So exactly that batch's offset
range is read once more, decoded, and led through the function up to its first grouping, where Spark compares a row's window
with the watermark. The watermark that decides in batch N is the one with which batch N-1 ran (Spark's WatermarkPropagator:
late events are judged by the previous batch's), which the checkpoint's offset log has.

A row that falls into several windows is dropped when none of them takes it.

What is found is kept by offset, in one file of bounded size, so that a batch which is run again is not counted twice and a replay
can leave out exactly what was left out live. The file also says up to which batch everything is known: after a kill the batches
since then, which Spark's offset log has, are looked at again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.settings import MillstreamError
from millstream.settings.files import replace
from millstream.spark import pipeline
from millstream.spark.analysis import drops_late
from millstream.spark.context import Context
from millstream.spark.inputs.topic import marked
from millstream.spark.kafka import Ranges
from millstream.spark.operators.windows import is_window
from millstream.spark.progress import Offsets, next_offsets
from millstream.spark.provenance import ORIGIN

# Of a checkpoint of a query. Lines: {"version", "judged", "forgotten", "since", "offsets"}, then {"batch", "judged", "watermark"
# (epoch ms), "offsets"}; offsets are {topic: {partition: [[from, to], …]}}, since is {topic: {partition: offset}}.
FILE = "dropped.jsonl"
VERSION = 2
JUDGED_S = 10.0  # how often a query that drops nothing notes that: what is looked at again after a kill
MAX_RUNS = 100_000  # of offsets kept of a checkpoint; of older ones the count alone
MIN_SIZE = 2**16  # bytes below which the file is only added to

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


def since(checkpoint: Path, judged: int) -> list[Batch]:
    """Return the finished batches behind `judged` that read something and could drop it, as far as Spark's log has them."""
    finished = max((int(p.name) for p in (checkpoint / "commits").glob("*") if p.name.isdigit()), default=-1)
    found = []
    for number in range(judged + 1, finished + 1):
        watermark, begin, end = (
            watermark_of(checkpoint, number),
            _ends(checkpoint, number - 1),
            _ends(checkpoint, number),
        )
        if watermark and begin is not None and end is not None:
            found.append(Batch(number, between(begin, end), watermark))
    return found


def between(begin: Offsets, end: Offsets) -> Ranges:
    """Return the offsets from `begin` to `end`, by topic and partition."""
    return {t: {int(p): (begin.get(t, {}).get(p, 0), to) for p, to in parts.items()} for t, parts in end.items()}


def _ends(checkpoint: Path, batch: int) -> Offsets | None:
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return next_offsets({"sources": [{"endOffset": line} for line in lines[2:] if line.startswith("{")]})
    except (OSError, ValueError):
        return None


def find(context: Context, query: Query, batch: Batch, *, certain: bool = True) -> DataFrame:
    """Return topic, partition and offset of the input rows that the batch dropped as late, as a plain frame.

    certain: Spark said that it dropped some; otherwise the function is asked whether it goes by time at all.
    """
    frames = pipeline.plain_inputs(context, query, batch.ranges)
    return dropped(frames, query, batch.watermark, certain=certain)


def dropped(frames: Sequence[DataFrame], query: Query, watermark: int, *, certain: bool = True) -> DataFrame:
    """Return the causes of those rows that the query's function drops at a watermark. frames: its inputs, as plain frames.

    certain: as `find` has it.
    """
    limit = F.timestamp_millis(F.lit(watermark))
    timed = [
        (marked(frame, cast(Topic, given)), cast(Topic, given)) if given.streams else (frame, None)
        for frame, given in zip(frames, query.inputs, strict=True)
    ]
    result = query.function(*[frame for frame, _ in timed])
    grouped = _before_grouping(result)
    windows = [f.name for f in grouped.schema.fields if is_window(f.dataType)] if grouped is not None else []
    if grouped is not None and windows and grouped.columns.count(ORIGIN) == 1:
        last = grouped.groupBy(ORIGIN).agg(F.max(F.col(f"`{windows[-1]}`.end")).alias("_end"))
        late = [last.where(F.col("_end") <= limit)]
    else:  # no window to judge by: Spark compares the event's own time
        late = [
            frame.where(F.col(f"`{topic.event_time}`") <= limit) for frame, topic in timed if topic and topic.event_time
        ]
    causes = [rows.select(f"{ORIGIN}.topic", f"{ORIGIN}.partition", f"{ORIGIN}.offset") for rows in late]
    found = reduce(DataFrame.union, causes).distinct()
    return found if certain or drops_late(result) else found.limit(0)


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
    """The input rows that one checkpoint of a query has dropped, by offset. `total` is their number over all of its runs.

    The file is a journal: a line with everything, then one per batch, written together again when it has doubled. A batch that is
    run again drops the same offsets, which count once. `judged` is the batch up to which everything is known. `since` says from
    which offset on a partition's rows are known: older ones are counted but forgotten when there are more than MAX_RUNS runs.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.forgotten = 0
        self.judged = -1
        self.missed = False  # a batch could not be judged: those from there on are judged again at the next start
        self._size = self._whole = 0  # of the file: now, and when it was written together
        self.since: dict[str, dict[str, int]] = {}
        self.offsets: Runs = {}
        self._load()

    @property
    def total(self) -> int:
        """The number of dropped rows."""
        return self.forgotten + _count(self.offsets)

    def add(self, batch: Batch, origins: Iterable[tuple[str, int, int]]) -> int:
        """Keep a batch's dropped rows, on disk when it returns, and return their number."""
        found = sorted(origins)
        runs = as_runs(found)
        self._take(runs)
        if not self.missed:
            self.judged = max(self.judged, batch.number)
        content = {"batch": batch.number, "judged": self.judged, "watermark": batch.watermark, "offsets": runs}
        line = json.dumps(content).encode() + b"\n"
        if self._forget() or not self._whole or self._size + len(line) > max(2 * self._whole, MIN_SIZE):
            self._rewrite()
        else:
            with self._path.open("r+b") as file:
                file.seek(self._size)  # over the rest of a line that a crash cut off
                file.write(line)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            self._size += len(line)
        return len(found)

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                break  # cut off by a crash: its batch is counted again
            content = json.loads(line)
            if "version" in content:
                if content["version"] != VERSION:
                    raise MillstreamError(f"{self._path} is of version {content['version']}, expected {VERSION}.")
                self.forgotten, self.since, self._whole = content["forgotten"], content["since"], len(line)
            self.judged = max(self.judged, content.get("judged", content.get("batch", -1)))
            self._take(content["offsets"])
            self._size += len(line)

    def _take(self, runs: Runs) -> None:
        for topic, parts in runs.items():
            for partition, more in parts.items():
                first = self.since.get(topic, {}).get(partition, 0)
                known = self.offsets.setdefault(topic, {}).get(partition, [])
                self.offsets[topic][partition] = united(known, [[max(b, first), e] for b, e in more if e > first])

    def _forget(self) -> bool:
        """Forget the oldest half of the longest lists while there are too many runs."""
        done = False
        while sum(len(runs) for parts in self.offsets.values() for runs in parts.values()) > MAX_RUNS:
            topic, partition = max(
                ((t, p) for t, parts in self.offsets.items() for p in parts),
                key=lambda tp: len(self.offsets[tp[0]][tp[1]]),
            )
            runs = self.offsets[topic][partition]
            old, kept = runs[: (len(runs) + 1) // 2], runs[(len(runs) + 1) // 2 :]
            self.forgotten += sum(e - b for b, e in old)
            self.since.setdefault(topic, {})[partition] = old[-1][1]
            self.offsets[topic][partition] = kept
            done = True
        return done

    def _rewrite(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "judged": self.judged,
            "forgotten": self.forgotten,
            "since": self.since,
            "offsets": self.offsets,
        }
        line = json.dumps(content).encode() + b"\n"
        replace(self._path, line)
        self._size = self._whole = len(line)


def distinct(records: Iterable[Record]) -> int:
    """Return how many input rows any of the queries dropped: one that several dropped counts once, as far as offsets are kept."""
    runs: Runs = {}
    forgotten = 0
    for record in records:
        forgotten = max(forgotten, record.forgotten)
        for topic, parts in list(record.offsets.items()):
            for partition, more in list(parts.items()):
                known = runs.setdefault(topic, {}).get(partition, [])
                runs[topic][partition] = united(known, more)
    return forgotten + _count(runs)


def _count(runs: Runs) -> int:
    return sum(end - begin for parts in runs.values() for found in parts.values() for begin, end in found)


def united(known: list[list[int]], more: list[list[int]]) -> list[list[int]]:
    """Return sorted runs [from, to) of the offsets that are in either list of sorted runs."""
    if not known or not more or more[0][0] > known[-1][1]:
        return known + more
    found: list[list[int]] = []
    for begin, end in sorted(known + more):
        if found and begin <= found[-1][1]:
            found[-1] = [found[-1][0], max(found[-1][1], end)]
        else:
            found.append([begin, end])
    return found


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
