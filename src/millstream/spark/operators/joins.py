"""Joins of two topics in a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.event import duration
from millstream.event.duration import spark_interval
from millstream.settings import MillstreamError
from millstream.spark.provenance import ORIGIN

_HOW = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer", "unmatched": "left_outer"}
_RIGHT = "_right_"  # begins what the right side's columns are called while both have the name


def join_within(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    *,
    times: tuple[str, str],
    after: str | timedelta | None = None,
    before: str | timedelta | None = None,
    how: Literal["inner", "left", "right", "full", "unmatched"] = "inner",
) -> DataFrame:
    """Return the pairs of rows with equal `on` whose times are near: right time in [left time - before, left time + after].

        ms.join_within(searches, clicks, "user", times=("searched_at", "clicked_at"), after="20 minutes", how="left")

    on: columns that both sides have; the result has them once.   times: the event time of the left and of the right side.
    after, before: how far the right time may lie behind and ahead of the left; both ends count. At least one is given.
    how: "left", "right" and "full" keep the rows of that side that find no partner, with nulls: once, when the watermark has
    passed the last time at which one could come, also when the other topic is silent (after its `idle`). "unmatched" gives the
    left rows without a partner alone, with the left columns.
    Raises MillstreamError when a column is missing, or both sides have one of the same name that is not in `on`.
    """
    keys = [on] if isinstance(on, str) else list(on)
    if how not in _HOW:
        raise MillstreamError(f"join_within: how is one of {', '.join(_HOW)}, got {how!r}.")
    if after is None and before is None:
        raise MillstreamError('join_within: say how far apart the times may be: after="20 minutes", before="1 minute".')
    _check_columns(left, right, keys, times)
    both = [c for c in left.columns if c in right.columns]
    apart = right.withColumnsRenamed({c: f"{_RIGHT}{c}" for c in both})
    early, late = F.col(f"`{times[0]}`"), F.col(f"`{times[1]}`")
    condition = (late >= early - _interval(before)) & (late <= early + _interval(after))
    equal = [F.col(f"`{key}`") == F.col(f"`{_RIGHT}{key}`") for key in keys]
    joined = left.join(apart, reduce(lambda a, b: a & b, equal, condition), _HOW[how])
    if how == "unmatched":
        return joined.where(late.isNull()).select(*[F.col(f"`{c}`") for c in left.columns])
    kept = [_key(key, how) if key in keys else F.col(f"`{key}`") for key in left.columns]
    others = [F.col(f"`{c}`") for c in right.columns if c not in both]
    origins = [F.col(f"{_RIGHT}{ORIGIN}").alias(ORIGIN)] if ORIGIN in both else []
    return joined.select(*kept, *others, *origins)


def _key(key: str, how: str) -> Column:
    """The key of whichever side is there."""
    own, other = F.col(f"`{key}`"), F.col(f"`{_RIGHT}{key}`")
    return {"right": other, "full": F.coalesce(own, other)}.get(how, own).alias(key)


def _check_columns(left: DataFrame, right: DataFrame, keys: Sequence[str], times: tuple[str, str]) -> None:
    for side, frame, needed in (("left", left, [*keys, times[0]]), ("right", right, [*keys, times[1]])):
        if missing := [c for c in needed if c not in frame.columns]:
            there = ", ".join(c for c in frame.columns if c != ORIGIN)
            raise MillstreamError(f"join_within: the {side} side lacks {', '.join(missing)}; it has {there}.")
    if twice := [c for c in left.columns if c in right.columns and c not in keys and c != ORIGIN]:
        raise MillstreamError(
            f'join_within: both sides have {", ".join(twice)}. Rename one: right.withColumnRenamed("{twice[0]}", …).'
        )


def _interval(value: str | timedelta | None) -> Column:
    return F.expr(f"INTERVAL {spark_interval(timedelta(0) if value is None else duration(value))}")
