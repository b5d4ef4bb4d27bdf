"""`millstream produce`: lines of text as messages, for trying things out and for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import IO, Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic to write to; it must exist")]
File = Annotated[str | None, typer.Option(metavar="PATH", help="read lines from a file instead of standard input")]
KeyField = Annotated[str | None, typer.Option(metavar="FIELD", help="the field of the JSON value that is the key")]
Keyed = Annotated[
    bool, typer.Option("--keyed", help="lines are KEY, a tab, VALUE; an empty VALUE after the tab is null")
]
Header = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="a header on each message; may be repeated")
]
Partition = Annotated[int | None, typer.Option(min=0, help="write to this partition whatever the key")]

MAX_LINE = 16 * 1024 * 1024  # bytes; a file without line ends must not be read into memory whole
SEND_S = 30.0  # how long the last messages may take to be acknowledged
MAX_ERRORS = 5  # shown one by one; the rest is a number


@command(
    example="""echo '{"tailnum": "N14228", "delay": 2}' | millstream produce departures --key-field tailnum""",
    shows=("kafka", "data"),
)
def produce(
    at: Common,
    topic: Topic,
    file: File = None,
    key_field: KeyField = None,
    keyed: Keyed = False,
    header: Header = None,
    partition: Partition = None,
) -> None:
    """Write each line of standard input or of a file as one message; empty lines are skipped.

    Ends when every message is acknowledged. With --json it prints one line per acknowledged message: partition, offset, key.
    """
    from confluent_kafka import KafkaException

    from millstream.client.admin import end_offsets
    from millstream.client.producer import producer

    if keyed and key_field:
        raise MillstreamError("expected --keyed or --key-field, got both.")
    partitions = {p for _, p in end_offsets(at.log, [topic])}
    if partition is not None and partition not in partitions:
        raise MillstreamError(f"topic {topic!r} has the partitions 0 to {len(partitions) - 1}, not {partition}.")
    headers = [_header(text) for text in header or ()]
    client = producer(at.log)
    tally = _Tally(at)
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        key, value = _message(line, number, key_field, keyed)
        while True:
            try:
                client.produce(
                    topic,
                    value,
                    key,
                    -1 if partition is None else partition,
                    on_delivery=tally.note,
                    headers=[*headers],
                )
                break
            except BufferError:
                client.poll(0.1)
            except KafkaException as error:
                tally.note(error.args[0], None)  # too large for the client, say: the others are still written
                break
        client.poll(0)
    left = client.flush(SEND_S)
    tally.end(topic, left)


class _Tally:
    """Counts what was acknowledged and what was refused."""

    def __init__(self, at: Common) -> None:
        self._at = at
        self._out = at.out
        self._acknowledged = 0
        self._errors: dict[str, int] = {}

    def note(self, error: Any, message: Any) -> None:
        """Take a delivery report."""
        if error is not None:
            self._errors[error.str()] = self._errors.get(error.str(), 0) + 1
            return
        self._acknowledged += 1
        if self._at.json:
            key = message.key()
            self._out.line(
                {
                    "topic": message.topic(),
                    "partition": message.partition(),
                    "offset": message.offset(),
                    "key": None if key is None else key.decode(errors="backslashreplace"),
                }
            )

    def end(self, topic: str, left: int) -> None:
        """Say how it went. Raises MillstreamError when a message was not acknowledged."""
        if left:
            self._errors[f"not acknowledged within {SEND_S:.0f} s"] = left
        if self._errors:
            reasons = "; ".join(f"{count} × {reason}" for reason, count in list(self._errors.items())[:MAX_ERRORS])
            raise MillstreamError(
                f"{self._acknowledged:,} messages were written to {topic!r}, {sum(self._errors.values()):,} were not: {reasons}."
            )
        if not self._at.json:
            self._out.text(f"{self._acknowledged:,} messages written to {topic}")


def _message(line: bytes, number: int, key_field: str | None, keyed: bool) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a line."""
    if keyed:
        key, tab, value = line.partition(b"\t")
        if not tab:
            raise MillstreamError(f"line {number}: expected KEY, a tab and VALUE, got {_quoted(line)}.")
        return key, value or None
    if key_field is None:
        return None, line
    try:
        found = json.loads(line)
        field = found[key_field]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MillstreamError(
            f"line {number}: expected a JSON object with the field {key_field!r}, got {_quoted(line)}."
        ) from None
    if field is None:
        return None, line
    return (field if isinstance(field, str) else json.dumps(field)).encode(), line


def _lines(path: str | None) -> Iterator[bytes]:
    if path is None:
        yield from _split(sys.stdin.buffer)
        return
    try:
        with open(path, "rb") as file:
            yield from _split(file)
    except OSError as error:
        raise MillstreamError(f"{path} cannot be read: {error.strerror}.") from error


def _split(file: IO[bytes]) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise MillstreamError(f"line {number}: expected at most {MAX_LINE:,} bytes, got more.")
        yield line.rstrip(b"\r\n")


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise MillstreamError(f"expected --header NAME=VALUE, got {text!r}.")
    return name, value.encode()


def _quoted(line: bytes) -> str:
    text = line[:80].decode(errors="backslashreplace")
    return repr(text + "…" if len(line) > 80 else text)
