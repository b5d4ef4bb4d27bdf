"""`millstream tail`: the events of a topic as they are, and as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Common, command

if TYPE_CHECKING:
    from millstream.cli.filters import Filter
    from millstream.client.tail import Message

MAX_SHOWN = 64 * 1024  # bytes of a key, value or header that a line for people shows; --json shows all

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic to read")]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="WHERE",
        help='earliest, latest, an offset, -N (the last N), a time, or "10 minutes ago"',
    ),
]
Partition = Annotated[int | None, typer.Option(min=0, help="only this partition")]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="stop after that many events (that pass the filter)")
]
NoFollow = Annotated[bool, typer.Option("--no-follow", help="stop at the end instead of waiting for more")]
Where = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPRESSION", help="""over the JSON value: 'delay > 120 and origin == "JFK"'"""),
]


@command(
    example="""millstream tail departures --from "10 minutes ago" --filter 'delay > 120'""", shows=("kafka", "data")
)
def tail(
    at: Common,
    topic: Topic,
    start: From = "latest",
    partition: Partition = None,
    limit: Limit = None,
    no_follow: NoFollow = False,
    where: Where = None,
) -> None:
    """Print the events of a topic, from any place, and go on as they come.

    Partitions have no common order: the last N of a topic are those with the newest timestamps.
    With --json each event is one line: topic, partition, offset, timestamp, key, value, headers. A filter names fields of
    the JSON value; it knows == != < <= > >= in and or not + - * / %, a.b for a field inside another, and abs, contains,
    ends, len, lower, starts.
    """
    from millstream.cli.filters import parse as parse_filter
    from millstream.cli.moments import parse as parse_moment
    from millstream.client.tail import last
    from millstream.client.tail import tail as read

    passes = parse_filter(where) if where else None
    begin = parse_moment(start, datetime.now().astimezone())
    out, count = at.out, 0
    messages: Iterator[Message]
    if isinstance(begin, int) and begin < 0:
        newest, ends = last(at.log, topic, -begin, partition=partition)
        more = () if no_follow else read(at.log, topic, ends, partition=partition)
        messages = chain(newest, more)
    else:
        # Without a filter the reader itself stops at the limit; with one, only we can tell which events count.
        own_limit = None if passes else limit
        messages = read(at.log, topic, begin, follow=not no_follow, limit=own_limit, partition=partition)
    for message in messages:
        value, parsed = _value(message.value)
        if passes and not _passes(passes, value, parsed):
            continue
        if at.json:
            out.line(_facts(message, value))
        else:
            out.text(_line(message, parsed))
            out.flush()
        count += 1
        if count == limit:
            return


def _value(raw: bytes | None) -> tuple[Any, bool]:
    """Return the value and whether it is JSON; else it is text, or text with escapes when it is not UTF-8."""
    if raw is None:
        return None, True
    try:
        return json.loads(raw), True
    except (ValueError, RecursionError):
        return raw.decode(errors="backslashreplace"), False


def _passes(passes: Filter, value: Any, parsed: bool) -> bool:
    return parsed and isinstance(value, dict) and passes(value)


def _facts(message: Message, value: Any) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": _time(message.timestamp),
        "key": _text(message.key),
        "value": value,
        "headers": {name: _text(content) for name, content in message.headers},
    }


def _line(message: Message, parsed: bool) -> str:
    key = "" if message.key is None else f" {_shown(message.key)}"
    value = "(null)" if message.value is None else _shown(message.value)
    headers = "".join(f" {name}={_shown(content or b'')}" for name, content in message.headers)
    place = f"{message.partition}:{message.offset} {_time(message.timestamp) or '-'}"
    return f"{place}{key} {value}" + (f" [{headers[1:]}]" if headers else "")


def _shown(raw: bytes) -> str:
    from millstream.cli.output import printable

    text = printable(raw[:MAX_SHOWN].decode(errors="backslashreplace"))
    return text if len(raw) <= MAX_SHOWN else f"{text}… ({len(raw):,} bytes; --json shows all)"


def _text(raw: bytes | str | None) -> str | None:
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def _time(milliseconds: int) -> str | None:
    if milliseconds < 0:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
