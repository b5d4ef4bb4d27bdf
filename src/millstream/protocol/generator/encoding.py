"""Writes the encoding function of a message for a range of versions: straight-line code, nested structs inline."""

from __future__ import annotations

from itertools import groupby

from millstream.protocol.generator.code import FIXED, Lines, Packers, condition, default, default_value
from millstream.protocol.generator.definitions import Definition, Field, Struct


class EncodeWriter:
    """Code that appends `m` at `version` to the bytearray `out`; fixed-size values gather in runs."""

    def __init__(self, definition: Definition, first: int, last: int, packers: Packers, lines: Lines) -> None:
        self.definition = definition
        self.first, self.last = first, last
        self.flexible = definition.flexible.holds(first, last)
        self.packers = packers
        self.lines = lines
        self.run: list[tuple[str, str]] = []
        self.used: set[str] = set()
        self.out = "out"

    def write(self, name: str) -> None:
        """The whole function."""
        with self.lines.block(f"def {name}(m, out, version, cuts):"):
            before = len(self.lines.lines)
            self.struct(self.definition.struct, "m", 0)
            self.flush()
            if len(self.lines.lines) == before:
                self.lines.add("pass")
        self.lines.add("")

    def flush(self) -> None:
        """Write the pending run."""
        if not self.run:
            return
        values = ", ".join(value for code, value in self.run if code != "x")
        if not values:
            for _ in self.run:
                self.lines.add(f"{self.out}.append(0)")
        else:
            packer = self.packers.name([code for code, _ in self.run])
            self.used.add(packer)
            self.lines.add(f"{self.out} += p{packer}({values})")
        self.run = []

    def struct(self, struct: Struct, value: str, depth: int) -> None:
        plain = [f for f in struct.fields if not f.tagged.meets(self.first, self.last)]
        tagged = [f for f in struct.fields if f.tagged.meets(self.first, self.last)]
        for when, fields in groupby(plain, key=lambda f: condition(f, self.first, self.last)):
            group = list(fields)
            if when is None:
                for field in group:
                    self.field(field, f"{value}.{field.name}", depth)
                continue
            checks = [f for f in group if not f.ignorable]
            if when:
                self.flush()
                with self.lines.block(f"if {when}:"):
                    for field in group:
                        self.field(field, f"{value}.{field.name}", depth)
                    self.flush()
                if checks:
                    with self.lines.block("else:"):
                        self.refuse(checks, value)
            else:
                self.refuse(checks, value)
        if self.flexible:
            self.tags(tagged, value, depth)

    def refuse(self, fields: list[Field], value: str) -> None:
        for field in fields:
            name = f"{value}.{field.name}"
            with self.lines.block(f"if {self.differs(field, name)}:"):
                self.lines.add(f'raise not_carried("{field.name}", version, {name})')

    def differs(self, field: Field, name: str) -> str:
        text = default_value(field)
        if text == "None":
            return f"{name} is not None"
        if text in ("[]", "''", 'b""', "False"):
            return f"{name}"
        if text == "0":
            return name
        return f"{name} != {text}"

    def field(self, field: Field, value: str, depth: int) -> None:
        flexible = self.flexible if field.flexible is None else field.flexible.holds(self.first, self.last)
        nullable = field.nullable.meets(self.first, self.last)
        if field.array:
            self.array(field, value, depth, flexible, nullable)
        elif field.struct is not None:
            if nullable:
                self.flush()
                with self.lines.block(f"if {value} is None:"):
                    self.lines.add(f"{self.out}.append(255)")
                with self.lines.block("else:"):
                    self.lines.add(f"{self.out}.append(1)")
                    self.lines.add(f"m{depth + 1} = {value}")
                    self.struct(field.struct, f"m{depth + 1}", depth + 1)
                    self.flush()
            else:
                self.lines.add(f"m{depth + 1} = {value}")
                self.struct(field.struct, f"m{depth + 1}", depth + 1)
        elif field.kind in FIXED:
            self.run.append((FIXED[field.kind][0], value))
        else:
            self.slice(field, value, flexible, nullable)

    def length(self, flexible: bool, code: str, nullable: bool, variable: str) -> None:
        """The length of what `variable` holds (None: null)."""
        if not flexible:
            size = f"-1 if {variable} is None else len({variable})" if nullable else f"len({variable})"
            self.run.append((code, size))
            self.flush()
            return
        self.flush()
        self.lines.add(f"n = {f'0 if {variable} is None else ' if nullable else ''}len({variable}) + 1")
        with self.lines.block("if n < 128:"):
            self.lines.add(f"{self.out}.append(n)")
        with self.lines.block("else:"):
            self.lines.add(f"put_uvarint({self.out}, n)")

    def slice(self, field: Field, value: str, flexible: bool, nullable: bool) -> None:
        if field.kind == "string":
            self.lines.add(f"v = {f'None if {value} is None else ' if nullable else ''}{value}.encode()")
        else:
            self.lines.add(f"v = {value}")
        self.length(flexible, "h" if field.kind == "string" else "i", nullable, "v")
        if field.kind == "records":
            with self.lines.block("if v is None:" if nullable else "if False:"):
                self.lines.add("pass")
            with self.lines.block("elif cuts is None:"):
                self.lines.add(f"{self.out} += v")
            with self.lines.block("elif len(v):"):
                self.lines.add(f"cuts.append((len({self.out}), v))")
        elif nullable:
            with self.lines.block("if v:"):
                self.lines.add(f"{self.out} += v")
        else:
            self.lines.add(f"{self.out} += v")

    def array(self, field: Field, value: str, depth: int, flexible: bool, nullable: bool) -> None:
        items = f"a{depth}"
        self.lines.add(f"{items} = {value}")
        self.length(flexible, "i", nullable, items)
        if field.struct is None and field.kind in FIXED:
            with self.lines.block(f"if {items}:"):
                if field.kind == "uuid":
                    self.lines.add(f'{self.out} += b"".join({items})')
                else:
                    self.lines.add(f'{self.out} += struct.pack(f">{{len({items})}}{FIXED[field.kind][0]}", *{items})')
            return
        each = f"m{depth + 1}"
        with self.lines.block(f"for {each} in {items}{' or ()' if nullable else ''}:"):
            if field.struct is not None:
                before = len(self.lines.lines)
                self.struct(field.struct, each, depth + 1)
                self.flush()
                if len(self.lines.lines) == before:
                    self.lines.add("pass")
            else:
                self.slice(field, each, flexible, False)
                self.flush()

    def tags(self, tagged: list[Field], value: str, depth: int) -> None:
        if not tagged:
            self.run.append(("x", ""))
            return
        self.flush()
        tests = []
        for field in sorted(tagged, key=lambda f: f.tag):
            name = f"{value}.{field.name}"
            test = self.differs(field, name)
            when = condition(field, self.first, self.last)
            if field.array and default(field) == "[]" and field.nullable.meets(self.first, self.last):
                test = f"{name} is None or {name}"
            tests.append((field, name, f"({test}) and {when}" if when else test))
        self.lines.add(f"tags_{depth} = " + " + ".join(f"(1 if {test} else 0)" for _, _, test in tests))
        self.lines.add(f"{self.out}.append(tags_{depth})")
        with self.lines.block(f"if tags_{depth}:"):
            for field, name, test in tests:
                with self.lines.block(f"if {test}:"):
                    outer, self.out = self.out, f"t{depth}"
                    self.lines.add(f"{self.out} = bytearray()")
                    self.field(field, name, depth)
                    self.flush()
                    self.out = outer
                    self.lines.add(f"put_uvarint({self.out}, {field.tag})")
                    self.lines.add(f"put_uvarint({self.out}, len(t{depth}))")
                    self.lines.add(f"{self.out} += t{depth}")
