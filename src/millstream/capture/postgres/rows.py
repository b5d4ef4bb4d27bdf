"""Rows from PostgreSQL's text values: those of COPY's lines and of the log, as values by name. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.capture.postgres.pgoutput import Values
from millstream.capture.postgres.types import Type
from millstream.capture.source import Row


class Rows:
    """Converts the rows of one table with one set of columns."""

    def __init__(self, names: Sequence[str], types: Sequence[Type]) -> None:
        self.names = tuple(names)
        self._converters = tuple((i, f) for i, t in enumerate(types) if (f := t.converter()) is not None)

    def convert(self, row: Values) -> Row:
        """Return the row as JSON-able values by name. `row` has text in the columns' order; it is changed in place."""
        values: list[object] = row  # type: ignore[assignment]
        for i, converter in self._converters:
            if (value := values[i]) is not None:
                values[i] = converter(value)  # type: ignore[arg-type]
        return dict(zip(self.names, values, strict=True))


def split_copy_row(line: str) -> Values:
    """Return the values of one row in COPY's text format, without its line end."""
    values: Values = line.split("\t")  # type: ignore[assignment]
    if "\\" in line:
        return [None if v == "\\N" else unescape(v) if "\\" in v else v for v in line.split("\t")]
    return values


def unescape(value: str) -> str:
    """Undo COPY's backslash sequences, those that the server writes: \\\\ \\b \\f \\n \\r \\t \\v."""
    parts = value.split("\\")
    result = [parts[0]]
    i = 1
    while i < len(parts):
        part = parts[i]
        if part:
            result.append(_ESCAPES.get(part[0], part[0]) + part[1:])
            i += 1
        else:  # two backslashes: one, and the next part stands as it is
            result.append("\\" + (parts[i + 1] if i + 1 < len(parts) else ""))
            i += 2
    return "".join(result)


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
