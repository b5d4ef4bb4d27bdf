"""An application whose source, format and output are made here, without a line in the package.

Words are counted: `words` brings events as "word:number", `numbers` is a table that follows a file, and each batch of the joined
rows is appended to a file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import millstream as ms
from millstream import capture
from millstream.app import load
from millstream.app.outputs import Base
from millstream.app.process import TOPICS, Call, Process
from millstream.settings import Settings
from tests.capture.toy import Toy, ToySource


class Word(ms.Event):
    word: str
    id: int


# A format: an event as text and back, and the same on Spark.


class Colon:
    name: ClassVar[str] = "colon"
    spark: ClassVar[str] = __name__

    def encode(self, event: Any) -> bytes:
        return f"{event.word}:{event.id}".encode()

    def decode(self, kind: type[Any], data: bytes) -> Any:
        word, _, number = data.decode().partition(":")
        return kind(word=word, id=int(number))


def _parts() -> tuple[Any, Any]:
    from pyspark.sql import functions as F

    parts = F.split(F.col("value").cast("string"), ":")
    return F.get(parts, F.lit(0)), F.get(parts, F.lit(1)).try_cast("bigint")


def events(messages: Any, topic: Any) -> Any:
    from millstream.spark import provenance

    word, number = _parts()
    return messages.select(word.alias("word"), number.alias("id"), provenance.of_message()).where("id is not null")


def malformed(messages: Any, topics: Sequence[Any]) -> Any:
    from pyspark.sql import functions as F

    kept = ("topic", "partition", "offset", "timestamp", "key", "value")
    return messages.where(_parts()[1].isNull()).select(*kept, F.lit("expected word:number").alias("reason"))


# A source: lines "id n" of a file, which its process follows.


@dataclass(frozen=True)
class Lines:
    kind: ClassVar[str] = "file"

    path: str
    database: str = "lines"

    def describe(self) -> str:
        return self.path

    def process(self, settings: Settings) -> Process:
        needs, gets = frozenset({TOPICS}), frozenset({"kafka"})
        return Process("capture-lines", module=__name__, arguments=(self.path,), kind="capture", needs=needs, gets=gets)

    def embedded_database(self, settings: Settings) -> str:
        return ""


def tables(app: str, settings: Settings, wanted: Sequence[Any]) -> dict[str, Any]:
    return {table.name: ToySource(Toy()).describe(table) for table in wanted}


def main(call: Call) -> None:
    app, [path] = load(call.file), call.arguments

    @contextmanager
    def opened(waiting: Callable[[], bool]) -> Iterator[ToySource]:
        toy, stop = Toy(), threading.Event()
        seen: list[str] = []

        def follow() -> None:
            while not stop.wait(0.05):
                for line in Path(path).read_text().splitlines()[len(seen) :]:
                    seen.append(line)
                    number, n = line.split()
                    toy.write((int(number), int(n)))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield ToySource(toy)
        finally:
            stop.set()

    state = call.settings.data / "capture" / "lines"
    tables = list(app.tables.values())
    capture.run(app.name, "lines", opened, tables, call.settings.log, state=state, ready=call.ready, stop=call.stop)


# An output: rows appended to a file.


@dataclass(frozen=True)
class Appended(Base):
    kind: ClassVar[str] = "appended"
    spark: ClassVar[str] = __name__

    to: str
    key: tuple[str, ...] = ()


def start(context: Any, query: Any, result: Any) -> Any:
    from millstream.spark import provenance

    def write(batch: Any, number: int) -> None:
        with Path(query.output.to).open("a") as file:
            for row in batch.select(*provenance.columns(batch)).collect():
                file.write(json.dumps(row.asDict(), sort_keys=True) + "\n")

    return context.batches(result, query, "append", write)


def application(folder: Path) -> ms.App:
    """The application over the files of a folder."""
    app = ms.App("toys")
    words = app.topic("words", Word, format=Colon())
    numbers = app.table("numbers", source=Lines(str(folder / "lines.txt")))

    @app.query(words, numbers, output=Appended(str(folder / "out.jsonl")))
    def joined(words: Any, numbers: Any) -> Any:
        return words.join(numbers, "id")

    return app
