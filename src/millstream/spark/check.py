"""What `run` would refuse of each query, found out on Spark without running any: the same pipeline, over inputs that are empty.

`python -m millstream.spark.check APPFILE` is a process of its own: the user's file may do what it likes there, and Spark
ends with it. On stdin it gets the columns of captured tables, a JSON object of topic -> schema, or the reason why they are not
known; the settings come in environment variables. On stdout it prints one line of JSON: {"queries": [a Finding …]} or
{"error": …}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from millstream.settings import Kafka, MillstreamError, Settings, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.app import App
    from millstream.app.query import Query
    from millstream.spark.changelog import Reader, Snapshot
    from millstream.spark.context import Context
    from millstream.spark.rows import TableSchema

TIMEOUT_S = 300.0  # for the user's file, Spark's start and all queries; a first run downloads the connector
_NOWHERE = Kafka("127.0.0.1:9092")  # a stream is analysed without asking its log
# A few plans and no tasks.
_SMALL = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "1"}
_LAST_LINES = 5  # of Spark's own words, when it dies

State = Literal["refused", "unknown", "none", "new", "fits", "would mix", "rebuild"]


@dataclass(frozen=True)
class Finding:
    """What is known of a query before it runs.

    state: "refused": Spark cannot run it; "unknown": it could not be looked at; else what becomes of its state: "none": it keeps
    none; "new": it has none yet; "fits": it continues; "would mix", "rebuild": it would not start on it.
    detail: why, and what to do.   keeps: the operators that keep state, in users' words.
    """

    query: str
    state: State
    detail: str = ""
    keeps: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the query would start."""
        return self.state in ("none", "new", "fits")


@dataclass(frozen=True)
class _Described:
    """A captured table of which the columns are known, and no row."""

    name: str
    columns: TableSchema

    def schema(self) -> TableSchema:
        return self.columns

    def snapshot(self, reader: Reader) -> Snapshot:
        from millstream.spark.changelog import Snapshot

        return Snapshot(self.columns, (), 0, 0)


class _Tables:
    """The captured tables as empty frames, or why their columns are not known."""

    def __init__(self, schemas: Mapping[str, TableSchema | str]) -> None:
        self._schemas = schemas

    def __getitem__(self, name: str) -> _Described:
        found = self._schemas.get(name, "nobody looked")
        if isinstance(found, str):
            raise Unreachable(f"the columns of table {name!r} are not known: {found}")
        return _Described(name, found)


def check(app: App, settings: Settings, tables: Mapping[str, TableSchema | str], spark: SparkSession) -> list[Finding]:
    """Return what is known of each query, on a session that is there. Starts nothing.

    tables: the columns of captured tables by topic, or why they are not known.
    """
    from millstream.spark.context import Context
    from millstream.spark.pickling import send_applications_by_value

    send_applications_by_value()
    known = replace(settings, kafka=settings.kafka or _NOWHERE)
    context = Context(spark, app.name, known, _Tables(tables))
    return [_query(context, query) for query in app.queries.values()]


def _query(context: Context, query: Query) -> Finding:
    from millstream.spark import fingerprint, pipeline, positions
    from millstream.spark.errors import failure

    try:
        _, now = pipeline.analyse(context, query)
    except Unreachable as error:
        return Finding(query.name, "unknown", str(error).removeprefix(f"{query}: "))
    except Exception as error:
        return Finding(query.name, "refused", failure(error).text.removeprefix(f"{query}: "))
    keeps = tuple(dict.fromkeys(o.kind for o in now.operators))
    checkpoint = context.checkpoint(query.name)
    try:
        if pipeline.keeps(context, query, now):
            positions.check(checkpoint, pipeline.topics(query), str(query), context.aside(query.name))
        verdict = fingerprint.compare(fingerprint.noted(checkpoint), now)
    except (MillstreamError, OSError) as error:
        return Finding(query.name, "refused", str(error).removeprefix(f"{query}: "), keeps)
    why = fingerprint.refusal(verdict, pipeline.again(context, query)) if verdict.refused else verdict.why
    return Finding(query.name, verdict.word, why, keeps)


def checked(file: str, settings: Settings, tables: Mapping[str, Any]) -> list[Finding]:
    """Return what is known of each query of the application that `file` names, found out in a process of its own.

    tables: the columns of captured tables by topic, as the values of `_millstream.schemas`, or why they are not known.
    Raises MillstreamError when Spark cannot start, or the process ends or takes too long.
    """
    command = (sys.executable, "-m", "millstream.spark.check", file)
    environment = os.environ | settings.environment()
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                command,
                input=msgspec.json.encode(tables),
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MillstreamError(f"the queries of {file} are not analysed after {TIMEOUT_S:.0f} s.") from error
        try:
            answer: dict[str, Any] = msgspec.json.decode(done.stdout)
        except msgspec.DecodeError as error:
            said.seek(0)
            last = "\n".join(said.read().decode(errors="replace").splitlines()[-_LAST_LINES:])
            raise MillstreamError(
                f"the process that analyses the queries of {file} ended with exit code {done.returncode}: {last}"
            ) from error
    if "error" in answer:
        raise MillstreamError(answer["error"])
    return [Finding(**{**f, "keeps": tuple(f["keeps"])}) for f in answer["queries"]]


def main(arguments: Sequence[str]) -> None:
    """Print what is known of each query. What the user's file and Spark print goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    given = sys.stdin.buffer.read()
    try:
        answer: dict[str, Any] = {"queries": [asdict(f) for f in _check_alone(arguments[0], given)]}
    except MillstreamError as error:
        answer = {"error": str(error)}
    os.write(own, msgspec.json.encode(answer) + b"\n")


def _check_alone(file: str, given: bytes) -> list[Finding]:
    from millstream.app import load
    from millstream.spark.rows import TableSchema
    from millstream.spark.session import session

    settings = Settings.inherited()
    tables = msgspec.json.decode(given, type=dict[str, TableSchema | str])
    app = load(file)
    with tempfile.TemporaryDirectory(prefix="millstream-plan-") as folder:
        # A folder that goes, since a plan leaves nothing; this machine, since a cluster is not needed to look at plans.
        alone = replace(settings, data=Path(folder), spark="", checkpoints=None)
        spark = session(f"{app.name} plan", alone, more=_SMALL)
        try:
            return check(app, settings, tables, spark)
        finally:
            with suppress(Exception):  # what is found counts, not how Spark ends
                spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
