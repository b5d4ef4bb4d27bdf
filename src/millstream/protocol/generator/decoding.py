"""Writes the decoding function of a message for a range of versions: straight-line code, nested structs inline."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from millstream.protocol.generator.code import (
    FIXED,
    SIZES,
    Lines,
    Packers,
    condition,
    default_value,
    smallest,
)
from millstream.protocol.generator.definitions import Definition, Field, Struct


class DecodeWriter:
    """Code that reads `buf` from `pos` to `end` at `version`; fixed-size values gather in runs read at once."""

    def __init__(self, definition: Definition, first: int, last: int, packers: Packers, lines: Lines) -> None:
        self.definition = definition
        self.first, self.last = first, last
        self.flexible = definition.flexible.holds(first, last)
        self.packers = packers
        self.lines = lines
        self.run: list[tuple[str, str]] = []
        self.used: set[str] = set()

    def write(self, name: str) -> None:
        """The whole function."""
        with self.lines.block(f"def {name}(buf, pos, end, version):"):
            made = self.struct(self.definition.struct, 0)
            self.lines.add(f"return {made}, pos")
        self.lines.add("")

    def struct(self, struct: Struct, depth: int) -> str:
        """Reads the fields; returns the expression that makes the object."""
        plain = [f for f in struct.fields if not f.tagged.meets(self.first, self.last)]
        tagged = [f for f in struct.fields if f.tagged.meets(self.first, self.last)]
        for when, fields in groupby(plain, key=lambda f: condition(f, self.first, self.last)):
            group = list(fields)
            if when == "":
                continue
            if when is None:
                for field in group:
                    self.field(field, depth)
                continue
            self.flush()
            with self.lines.block(f"if {when}:"):
                for field in group:
                    self.field(field, depth)
                self.flush()
            with self.lines.block("else:"):
                for field in group:
                    self.lines.add(f"{self.name(field, depth)} = {default_value(field)}")
        if self.flexible:
            self.tags(tagged, depth)
        self.flush()
        values = ", ".join(
            default_value(f) if condition(f, self.first, self.last) == "" else self.name(f, depth)
            for f in struct.fields
        )
        return f"{struct.python}({values})"

    def name(self, field: Field, depth: int) -> str:
        return f"{field.name}_{depth}" if depth else f"{field.name}_"

    def flush(self) -> None:
        """Write the pending run."""
        if not self.run:
            return
        packer = self.packers.name([code for code, _ in self.run])
        self.used.add(packer)
        targets = ", ".join(target for _, target in self.run)
        if len(self.run) == 1:
            if self.run[0][0] == "B":
                self.lines.add(f"{targets} = buf[pos]")
            else:
                self.lines.add(f"({targets},) = u{packer}(buf, pos)")
        else:
            self.lines.add(f"{targets} = u{packer}(buf, pos)")
        self.lines.add(f"pos += {sum(SIZES[code] for code, _ in self.run)}")
        self.run = []

    def field(self, field: Field, depth: int) -> None:
        target = self.name(field, depth)
        flexible = self.flexible if field.flexible is None else field.flexible.holds(self.first, self.last)
        nullable = field.nullable.meets(self.first, self.last)
        if field.array:
            self.sized(field, target, flexible, nullable, "i", lambda: self.array(field, target, depth, flexible))
        elif field.struct is not None:
            self.inline(field, target, depth, nullable)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind][0], target))
        else:
            code = "h" if field.kind == "string" else "i"
            self.sized(field, target, flexible, nullable, code, lambda: self.slice(field, target))

    def sized(
        self, field: Field, target: str, flexible: bool, nullable: bool, code: str, body: Callable[[], None]
    ) -> None:
        """A length, null or the body it announces."""
        self.run.append(("B" if flexible else code, "n"))
        self.flush()
        if flexible:
            with self.lines.block("if n > 127:"):
                self.lines.add("n, pos = uvarint(buf, pos - 1)")
            self.lines.add("n -= 1")
        if nullable:
            with self.lines.block("if n < 0:"):
                self.lines.add(f"{target} = None")
            with self.lines.block("else:"):
                body()
                self.flush()
        else:
            with self.lines.block("if n < 0:"):
                self.lines.add(f'raise bad_length("{field.name}", n, end - pos)')
            body()

    def slice(self, field: Field, target: str) -> None:
        self.lines.add("stop = pos + n")
        with self.lines.block("if stop > end:"):
            self.lines.add(f'raise bad_length("{field.name}", n, end - pos)')
        value = {"string": 'str(buf[pos:stop], "utf-8")', "bytes": "bytes(buf[pos:stop])", "records": "buf[pos:stop]"}
        self.lines.add(f"{target} = {value[field.kind]}")
        self.lines.add("pos = stop")

    def array(self, field: Field, target: str, depth: int, flexible: bool) -> None:
        least = smallest(field, self.first, self.last, flexible)
        with self.lines.block(f"if n * {least} > end - pos:" if least > 1 else "if n > end - pos:"):
            self.lines.add(f'raise bad_length("{field.name}", n, end - pos)')
        if field.struct is None and field.kind in FIXED:
            code, size = FIXED[field.kind]
            if code == "16s":
                self.lines.add(f"{target} = [bytes(buf[at : at + 16]) for at in range(pos, pos + 16 * n, 16)]")
            else:
                self.lines.add(f'{target} = list(struct.unpack_from(f">{{n}}{code}", buf, pos))')
            self.lines.add(f"pos += {size} * n")
            return
        self.lines.add(f"{target} = []")
        with self.lines.block("for _ in range(n):"):
            if field.struct is not None:
                made = self.struct(field.struct, depth + 1)
                self.lines.add(f"{target}.append({made})")
            else:
                element = Field(
                    name=field.name, original=field.original, kind=field.kind, array=False, versions=field.versions,
                    nullable=type(field.nullable)(0, -1), tagged=type(field.tagged)(0, -1), tag=-1, default=None,
                    ignorable=False, flexible=field.flexible,
                )  # fmt: skip
                self.field(element, depth + 1)
                self.lines.add(f"{target}.append({self.name(element, depth + 1)})")

    def inline(self, field: Field, target: str, depth: int, nullable: bool) -> None:
        assert field.struct is not None
        if not nullable:
            made = self.struct(field.struct, depth + 1)
            self.lines.add(f"{target} = {made}")
            return
        self.run.append(("b", "n"))
        self.flush()
        with self.lines.block("if n < 0:"):
            self.lines.add(f"{target} = None")
        with self.lines.block("else:"):
            made = self.struct(field.struct, depth + 1)
            self.lines.add(f"{target} = {made}")

    def tags(self, tagged: list[Field], depth: int) -> None:
        count = f"tags_{depth}"
        self.run.append(("B", count))
        self.flush()
        for field in tagged:
            self.lines.add(f"{self.name(field, depth)} = {default_value(field)}")
        with self.lines.block(f"if {count}:"):
            if not tagged:
                self.lines.add("pos = skip_tags(buf, pos - 1, end)")
                return
            with self.lines.block(f"if {count} > 127:"):
                self.lines.add(f"{count}, pos = uvarint(buf, pos - 1)")
            with self.lines.block(f"for _ in range({count}):"):
                self.lines.add("tag, pos = uvarint(buf, pos)")
                self.lines.add("n, pos = uvarint(buf, pos)")
                self.lines.add(f"stop_{depth} = pos + n")
                with self.lines.block(f"if stop_{depth} > end:"):
                    self.lines.add('raise bad_length("a tagged field", n, end - pos)')
                word = "if"
                for field in tagged:
                    when = condition(field, self.first, self.last)
                    with self.lines.block(f"{word} tag == {field.tag}{' and ' + when if when else ''}:"):
                        self.field(field, depth)
                        self.flush()
                    word = "elif"
                self.lines.add(f"pos = stop_{depth}")
