"""The event on which a query's function fails: the batch that failed is read again, halved until one event is left.

Each half is a plain frame through the query's function, whose rows go nowhere. Only for functions that look at one event at a
time: of those that group, the failing rows are no single event's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from millstream.app.query import Query
from millstream.spark import pipeline, positions
from millstream.spark.analysis import stateful
from millstream.spark.context import Context
from millstream.spark.errors import Blame, failure

MAX_RUNS = 60  # of the function over parts of the batch; a batch of 250,000 events needs about 20 per partition

Range = tuple[str, int, int, int]  # topic, partition, from, to (excluded)


def find(context: Context, query: Query) -> str | None:
    """Return where the first event stands on which the function of a query fails: "<topic> [<partition>] at offset <n>".

    The query must have ended. None when its function does not fail on a single event of the batch.
    """
    if len(query.streams) != 1:
        return None

    def rows(part: Range) -> DataFrame:
        name, partition, begin, end = part
        return query.function(*pipeline.plain_inputs(context, query, {name: {partition: (begin, end)}}))

    def fails(part: Range) -> bool:
        try:
            rows(part).write.format("noop").mode("overwrite").save()
        except Exception as error:
            return failure(error).blame is Blame.EVENT
        return False

    ranges = _batch(context, query)
    if not ranges or stateful(rows(ranges[0])):
        return None
    found = halve(ranges, fails)
    return f"{found[0]} [{found[1]}] at offset {found[2]}" if found else None


def halve(ranges: list[Range], fails: Callable[[Range], bool]) -> Range | None:
    """Return the first single event that fails, or None when there is none or it takes more than MAX_RUNS to find it."""
    runs = 0
    for part in ranges:
        runs += 1
        if not fails(part):
            continue
        topic, partition, begin, end = part
        while end - begin > 1 and runs < MAX_RUNS:
            middle, runs = (begin + end) // 2, runs + 1
            if fails((topic, partition, begin, middle)):
                end = middle
            else:
                begin = middle
        return (topic, partition, begin, end) if end - begin == 1 else None
    return None


def _batch(context: Context, query: Query) -> list[Range]:
    """The offsets that the query's unfinished batch reads, by its checkpoint."""
    folder = context.checkpoint(query.name)
    planned = max((int(p.name) for p in (folder / "offsets").glob("*") if p.name.isdigit()), default=None)
    if planned is None:
        return []
    begin: dict[tuple[str, str], int] = {}
    for source in positions.positions(folder):
        begin |= {(t, p): offset for t, parts in source.items() for p, offset in parts.items()}
    ends: list[Mapping[str, Mapping[str, int]]] = [
        json.loads(line) for line in (folder / "offsets" / str(planned)).read_text().splitlines()[2:] if line != "-"
    ]
    return [
        (topic, int(p), begin.get((topic, p), 0), end)
        for source in ends
        for topic, parts in source.items()
        for p, end in parts.items()
        if end > begin.get((topic, p), 0)
    ]
