"""Kafka's JSON message definitions read into values: messages, structs, fields and version ranges."""

from __future__ import annotations

import json
import keyword
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOREVER = 0x7FFF


@dataclass(frozen=True)
class Versions:
    """An inclusive range of versions; empty when first > last."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        """From Kafka's notation: "3", "1-4", "2+", "none"."""
        if not text or text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), FOREVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def holds(self, first: int, last: int) -> bool:
        """Whether every version of the range is in this one."""
        return self.first <= first and last <= self.last

    def meets(self, first: int, last: int) -> bool:
        """Whether any version of the range is in this one."""
        return max(self.first, first) <= min(self.last, last)


@dataclass
class Field:
    """A field of a struct. `kind` is the element's type for arrays."""

    name: str
    original: str
    kind: str
    array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: Any
    ignorable: bool
    flexible: Versions | None  # overrides the message's
    struct: Struct | None = None


@dataclass
class Struct:
    """A named group of fields; `python` is the name of its generated class."""

    name: str
    fields: list[Field]
    versions: Versions
    python: str = ""


@dataclass
class Definition:
    """One JSON file: a request, response, header, data or coordinator record."""

    name: str
    type: str
    api_key: int
    versions: Versions
    flexible: Versions
    struct: Struct
    structs: list[Struct] = field(default_factory=list)  # nested ones, inner first


def snake(name: str) -> str:
    """TopicId -> topic_id; a Python keyword gets an underscore."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return name + "_" if keyword.iskeyword(name) else name


def sources(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Name and text of each definition in jars or folders."""
    for path in paths:
        if path.is_dir():
            for file in sorted(path.glob("**/*.json")):
                yield file.stem, file.read_text()
        else:
            with zipfile.ZipFile(path) as jar:
                for name in sorted(jar.namelist()):
                    if name.startswith("common/message/") and name.endswith(".json"):
                        yield Path(name).stem, jar.read(name).decode()


def parse(text: str) -> Definition:
    """One definition from its JSON (with Kafka's // comments)."""
    data = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    common: dict[str, Struct] = {}
    structs: list[Struct] = []
    raw_common = {s["name"]: s for s in data.get("commonStructs", [])}

    def struct(name: str, raw: dict[str, Any]) -> Struct:
        made = Struct(name, [make(f) for f in raw.get("fields", [])], Versions.parse(raw.get("versions", "0+")))
        structs.append(made)
        return made

    def make(raw: dict[str, Any]) -> Field:
        kind = raw["type"]
        array = kind.startswith("[]")
        kind = kind.removeprefix("[]")
        inner: Struct | None = None
        if kind[0].isupper():
            if "fields" in raw:
                inner = struct(kind, raw)
            elif kind in common:
                inner = common[kind]
            elif kind in raw_common:
                inner = common[kind] = struct(kind, raw_common[kind])
            else:  # a struct that an earlier field defined
                inner = next(s for s in structs if s.name == kind)
            kind = "struct"
        tagged = Versions.parse(raw.get("taggedVersions"))
        return Field(
            name=snake(raw["name"]),
            original=raw["name"],
            kind=kind,
            array=array,
            versions=Versions.parse(raw.get("versions") or raw.get("taggedVersions")),
            nullable=Versions.parse(raw.get("nullableVersions")),
            tagged=tagged,
            tag=raw.get("tag", -1),
            default="null" if "default" in raw and raw["default"] is None else raw.get("default"),
            ignorable=bool(raw.get("ignorable", False)),
            flexible=Versions.parse(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
            struct=inner,
        )

    top = struct(data["name"], data)
    structs.remove(top)
    return Definition(
        name=data["name"],
        type=data["type"],
        api_key=data.get("apiKey", -1),
        versions=Versions.parse(data["validVersions"]),
        flexible=Versions.parse(data.get("flexibleVersions", "none")),
        struct=top,
        structs=structs,
    )
