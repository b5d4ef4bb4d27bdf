"""Writing Python: indented lines, types and defaults of fields, runs of fixed-size values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.protocol.generator.definitions import Field

# Kafka's type -> struct format, size
FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
SIZES = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
PYTHON = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "records": "Any", "uuid": "bytes"}


class Lines:
    """Lines of code under an indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, line: str) -> None:
        """Append a line at the current depth."""
        self.lines.append("    " * self.depth + line if line else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A line that opens a block, and the block."""
        self.add(head)
        self.depth += 1
        yield
        self.depth -= 1


class Packers:
    """The struct formats that a module uses, each compiled once under a name that tells it."""

    def __init__(self) -> None:
        self.formats: dict[str, str] = {}

    def name(self, codes: list[str]) -> str:
        """The module-level name of the Struct for these codes."""
        text = "".join(codes)
        return self.formats.setdefault(text, "_" + text.replace("?", "o"))

    def declare(self, reads: set[str], writes: set[str]) -> list[str]:
        """Assignments for the module's head."""
        out = []
        for text, name in sorted(self.formats.items()):
            if name in reads:
                out.append(f'u{name} = struct.Struct(">{text}").unpack_from')
            if name in writes:
                out.append(f'p{name} = struct.Struct(">{text}").pack')
        return out


def annotation(field: Field) -> str:
    """The Python type of a field."""
    if field.struct is not None:
        kind = field.struct.python
    else:
        kind = PYTHON.get(field.kind, "int")
    if field.array:
        kind = f"list[{kind}]"
    optional = field.nullable.first <= field.nullable.last or (
        field.struct is not None and not field.array and is_tagged(field)
    )
    return f"{kind} | None" if optional and kind != "Any" else kind


def is_tagged(field: Field) -> bool:
    """Whether the field is a tagged one in any version."""
    return field.tagged.first <= field.tagged.last


def default(field: Field) -> str:
    """The field's default as a Python expression; of a class attribute."""
    value = field.default
    if value == "null":
        return "None"
    if field.array:
        return "[]"
    if field.struct is not None:
        if is_tagged(field):
            return "None"  # absent; Kafka writes the tag only when the struct differs from its defaults
        if field.nullable.first <= field.nullable.last and value is None:
            return f"msgspec.field(default_factory={field.struct.python})"
        return f"msgspec.field(default_factory={field.struct.python})"
    if field.kind == "string":
        return repr(value or "")
    if field.kind in ("bytes", "records"):
        return 'b""'
    if field.kind == "uuid":
        return "ZERO_UUID"
    if field.kind == "bool":
        return str(str(value).lower() == "true")
    if field.kind == "float64":
        return repr(float(value or 0))
    return repr(int(str(value), 0)) if value not in (None, "") else "0"


def default_value(field: Field) -> str:
    """Like default, as an expression inside a function."""
    text = default(field)
    return f"{field.struct.python}()" if text.startswith("msgspec.field") and field.struct else text


def condition(field: Field, first: int, last: int) -> str | None:
    """When the field exists, as an expression on `version` within a range: None for always, "" for never."""
    if field.versions.holds(first, last):
        return None
    if not field.versions.meets(first, last):
        return ""
    parts = []
    if field.versions.first > first:
        parts.append(f"version >= {field.versions.first}")
    if field.versions.last < last:
        parts.append(f"version <= {field.versions.last}")
    return " and ".join(parts)


def smallest(field: Field, first: int, last: int, flexible: bool) -> int:
    """The fewest bytes that a value of the field's element takes: bounds announced array lengths."""
    if field.struct is None:
        if field.kind in FIXED:
            return FIXED[field.kind][1]
        return 1 if flexible else (2 if field.kind == "string" else 4)
    total = 1 if flexible else 0
    for inner in field.struct.fields:
        if inner.versions.holds(first, last) and not inner.tagged.meets(first, last):
            if inner.array or (inner.struct is None and inner.kind not in FIXED):
                total += 1 if flexible else (2 if inner.kind == "string" and not inner.array else 4)
            elif inner.struct is not None:
                total += 1
            else:
                total += FIXED[inner.kind][1]
    return max(total, 1)
