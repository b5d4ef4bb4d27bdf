"""Steps with requests that cannot be read: unknown APIs and versions, garbage, frames that end early or lie about their size."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
from typing import Any

from hypothesis import strategies as st

from millstream.protocol.messages import APIS
from tests.differential.steps.making import Kind
from tests.differential.world import World

KEYS = [0, 1, 2, 3, 8, 9, 10, 11, 12, 19, 20, 22, 24, 26, 28, 32, 42, 44, 68]
UNKNOWN = [4, 5, 6, 7, 58, 62, 500, 32_767, -1]


def garbage(world: World, p: dict[str, Any]) -> Any:
    """Bytes that are no request of the API."""
    return world.raw(p["key"], min(p["version"], APIS[p["key"]].last), p["body"])


def unknown(world: World, p: dict[str, Any]) -> Any:
    """An API that there is not, or a version that there is not (any more, or yet)."""
    return world.raw(*p["what"], b"\0" * 8)


def cut(world: World, p: dict[str, Any]) -> Any:
    """A frame whose end never comes; whether anything is answered when the client closes its side."""
    return world.cut(p["bytes"])


STEPS = {
    "garbage": Kind(1, garbage, {"key": st.sampled_from(KEYS), "version": st.sampled_from([3, 9]), "body": st.binary(max_size=40)}),
    "unknown": Kind(1, unknown, {
        "what": st.one_of(st.tuples(st.sampled_from(UNKNOWN), st.sampled_from([0, 1])), st.tuples(st.sampled_from(KEYS), st.sampled_from([-1, 99]))),
    }),
    "cut": Kind(1, cut, {
        "bytes": st.sampled_from([
            b"", b"\0\0", b"\0\0\0\x20", b"\0\0\0\x20" + b"\0\3\0\5", b"\0\0\0\0", b"\0\0\0\4" + b"\0\3\0\5", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
            b"\0\0\0\n" + b"\0\3\0\5\0\0\0\1\0\5", b"GET / HTTP/1.0\r\n\r\n",
        ]),
    }),
}  # fmt: skip
