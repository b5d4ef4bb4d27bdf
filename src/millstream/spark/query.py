"""A query as an application declares it: its inputs, a function from DataFrames to a DataFrame, and where the result goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from millstream.capture.table import Table
from millstream.event import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Kind = Literal["view", "stream", "alert"]


@dataclass(frozen=True)
class Query:
    """What runs on Spark.

    kind: "view" keeps a table up to date, "stream" writes a topic, "alert" writes a topic and suppresses repeats.
    inputs: what the function's parameters are, in their order. The first is a Topic.
    to: the view's table or the output topic's name.
    key: of a view, the columns that identify a row; of a stream or alert, the column of the message's key, if any.
    realtime: run in Spark's real-time mode (milliseconds) rather than in micro-batches.
    every: how often a micro-batch starts; in real-time mode how often progress is committed (5 seconds at least).
    """

    name: str
    kind: Kind
    inputs: tuple[Topic | Table, ...]
    function: Callable[..., DataFrame] = field(repr=False)
    to: str
    key: tuple[str, ...] = ()
    realtime: bool = False
    every: timedelta = timedelta(seconds=1)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The inputs that are topics."""
        return tuple(i for i in self.inputs if isinstance(i, Topic))

    @property
    def tables(self) -> tuple[Table, ...]:
        """The inputs that are captured tables."""
        return tuple(i for i in self.inputs if isinstance(i, Table))
