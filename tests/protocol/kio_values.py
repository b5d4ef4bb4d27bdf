"""Random values of kio's message classes, and the comparison of ours with them."""

import dataclasses
import datetime
import importlib
import io
import types
import typing
import uuid
from random import Random

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "error_code": 0}
RENAMED = {"generation_id"}
UTC = datetime.UTC


def load(folder, kind, version, name):
    """kio's class of a message in a version."""
    return getattr(importlib.import_module(f"kio.schema.{folder}.v{version}.{kind}"), name)


def make(cls, random: Random):
    """A random instance of a kio entity."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if field.metadata.get("tag") is not None and random.random() < 0.5:
            continue  # absent: the default
        values[field.name] = value(hints[field.name], field.metadata.get("kafka_type"), random)
    return cls(**values)


def value(hint, kafka_type, random: Random):
    """A random value of a field."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        arguments = typing.get_args(hint)
        some = [a for a in arguments if a is not type(None)]
        if type(None) in arguments and random.random() < 0.3:
            return None
        return value(some[0], kafka_type, random)
    if origin is tuple:
        return tuple(value(typing.get_args(hint)[0], kafka_type, random) for _ in range(_count(hint, random)))
    if dataclasses.is_dataclass(hint):
        return make(hint, random)
    if kafka_type == "error_code" or hint is ErrorCode:
        return random.choice(list(ErrorCode))
    if kafka_type == "uuid":
        return uuid.UUID(int=random.getrandbits(128) | 1)
    if kafka_type == "string":
        return "".join(random.choice("aZ09-_.éß水") for _ in range(random.choice((0, 1, 5, 140))))
    if kafka_type in ("bytes", "records"):
        return hint(random.randbytes(random.choice((0, 1, 7, 200))))
    if kafka_type == "bool":
        return random.random() < 0.5
    if kafka_type == "float64":
        return random.random()
    if kafka_type in ("uint16", "uint32"):
        return hint(random.getrandbits(int(kafka_type[4:])))
    name = getattr(hint, "__name__", "")
    if "Timedelta" in name or kafka_type in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=random.randrange(0, 2**31 - 1))
    if "datetime" in (kafka_type or "") or "Aware" in name:
        return datetime.datetime.fromtimestamp(random.randrange(0, 4_000_000_000), UTC)
    bits = INTS[kafka_type]
    return hint(random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)))


def _count(hint, random: Random) -> int:
    """Long arrays only of small things."""
    if dataclasses.is_dataclass(typing.get_args(hint)[0]):
        return random.choice((0, 1, 2))
    return random.choice((0, 1, 3, 130))


def encoded(entity) -> bytes:
    """The entity's bytes, as kio writes them."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def same(theirs, ours, path="") -> None:
    """Fail unless our message holds what kio's does, field by field."""
    if dataclasses.is_dataclass(theirs):
        if ours is None:  # a tagged struct with nothing but defaults
            assert theirs == type(theirs)()
            return
        for field in dataclasses.fields(theirs):
            mine = next((n for n in (field.name, field.name + "_ms", field.name + "_") if hasattr(ours, n)), None)
            if mine is None:  # Kafka has renamed the field since kio's release; its bytes are compared anyway
                assert field.name in RENAMED, f"{path}.{field.name} is missing in {type(ours).__name__}"
                continue
            same(getattr(theirs, field.name), getattr(ours, mine), f"{path}.{field.name}")
    elif isinstance(theirs, tuple):
        assert len(theirs) == len(ours), path
        for at, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            same(a, b, f"{path}[{at}]")
    elif isinstance(theirs, uuid.UUID):
        assert theirs.bytes == ours, path
    elif isinstance(theirs, datetime.timedelta):
        assert theirs // datetime.timedelta(milliseconds=1) == ours, path
    elif isinstance(theirs, datetime.datetime):
        epoch = datetime.datetime.fromtimestamp(0, UTC)
        assert (theirs - epoch) // datetime.timedelta(milliseconds=1) == ours, path
    elif isinstance(theirs, ErrorCode):
        assert theirs.value == ours, path
    elif theirs is None:
        assert ours in (None, bytes(16), -1), path
    elif isinstance(theirs, bytes):
        assert theirs == bytes(ours), path
    else:
        assert theirs == ours, path
