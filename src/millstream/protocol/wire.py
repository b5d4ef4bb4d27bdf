"""What every generated message shares: the base class, variable-length integers, and the errors of a bad encoding.

The format is Kafka's (https://kafka.apache.org/protocol): big-endian integers, strings and arrays with a length in
front, and from a message's first flexible version on compact lengths (an unsigned varint of length + 1) and tagged
fields (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import msgspec

Buffer = bytes | bytearray | memoryview
Decoder = Callable[[Any, int, int, int], tuple[Any, int]]
Encoder = Callable[[Any, bytearray, int, Any], None]

ZERO_UUID = bytes(16)
# An unsigned varint of 32 bits has at most five bytes; a longer one is garbage.
MAX_VARINT_BYTES = 5


class ProtocolError(ValueError):
    """Bytes that are not what the protocol says, or a message that a version cannot carry."""


class DecodeError(ProtocolError):
    """The bytes do not hold the message that was announced."""


class EncodeError(ProtocolError):
    """The message holds a value that this version of it cannot carry."""


class Message(msgspec.Struct, gc=False):
    """A request, response, header or record of Kafka's protocol; the generated modules hold its subclasses.

    Attributes not present in a version keep their defaults on decoding, and must hold them on encoding unless Kafka
    calls the field ignorable. UUIDs are 16 bytes; `records` is a view of the decoded buffer, not a copy.
    """

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[tuple[int, int]] = (0, -1)  # first and last
    FLEXIBLE: ClassVar[int] = 0x7FFF  # the first flexible version
    DECODERS: ClassVar[Mapping[int, Decoder]] = {}
    ENCODERS: ClassVar[Mapping[int, Encoder]] = {}

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = 0) -> Self:
        """Read a message of `version` that starts at `position`; raises DecodeError. Bytes behind it are ignored."""
        return cls.decode_from(buffer, version, position)[0]

    @classmethod
    def decode_from(cls, buffer: Buffer, version: int, position: int = 0) -> tuple[Self, int]:
        """Like decode, and also returns the position behind the message."""
        try:
            decoder = cls.DECODERS[version]
        except KeyError:
            raise DecodeError(cls._no_version(version)) from None
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        try:
            message: tuple[Self, int] = decoder(view, position, len(view), version)
            return message
        except (struct.error, IndexError):
            raise DecodeError(
                f"{cls.__name__} version {version} ends early: {len(view) - position} bytes do not hold it"
            ) from None
        except UnicodeDecodeError as e:
            raise DecodeError(f"{cls.__name__} version {version}: a string is not UTF-8 ({e})") from None

    def encode(self, version: int) -> bytes:
        """The message's bytes in `version`; raises EncodeError."""
        out = bytearray()
        self.encode_into(out, version)
        return bytes(out)

    def encode_into(self, out: bytearray, version: int, cuts: list[tuple[int, Any]] | None = None) -> None:
        """Append the message's bytes to `out`.

        With `cuts`, values of `records` fields are left out of `out` and noted as (position in out, value):
        only their `len` is taken, so that a response can refer to bytes of a file that never pass through memory.
        """
        try:
            encoder = self.ENCODERS[version]
        except KeyError:
            raise EncodeError(self._no_version(version)) from None
        try:
            encoder(self, out, version, cuts)
        except (struct.error, AttributeError, TypeError) as e:
            raise EncodeError(
                f"{type(self).__name__} version {version} cannot carry this value: {e}: {self!r:.500}"
            ) from e

    @classmethod
    def _no_version(cls, version: int) -> str:
        return f"{cls.__name__} has versions {cls.VERSIONS[0]} to {cls.VERSIONS[1]}, not {version}"


def uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position` and the position behind it."""
    value = shift = 0
    for _ in range(MAX_VARINT_BYTES):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DecodeError(f"a varint is longer than {MAX_VARINT_BYTES} bytes at position {position}")


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)


def skip_tags(buffer: memoryview, position: int, end: int) -> int:
    """The position behind a section of tagged fields none of which we know."""
    try:
        count, position = uvarint(buffer, position)
        for _ in range(count):
            _, position = uvarint(buffer, position)
            size, position = uvarint(buffer, position)
            position += size
            if position > end:
                raise DecodeError(f"a tagged field of {size} bytes passes the end of the message")
    except IndexError:
        raise DecodeError("the message ends inside its tagged fields") from None
    return position


def bad_length(field: str, length: int, left: int) -> DecodeError:
    """The error of a length that is negative where null is not allowed, or passes the end."""
    if length < 0:
        return DecodeError(f"{field} must not be null")
    return DecodeError(f"{field} announces a length of {length}, but only {left} bytes are left")


def not_carried(field: str, version: int, value: object) -> EncodeError:
    """The error of a value in a field that the version lacks."""
    return EncodeError(f"version {version} has no field {field}, but it was set to {value!r}")
