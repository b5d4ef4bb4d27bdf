"""Nothing that a client says forges a line of the broker's log or reaches the terminal that shows it."""

from __future__ import annotations

import logging
import struct

import pytest

from millstream.broker.logs import MAX_MESSAGE_CHARACTERS, EscapingFormatter, escape
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.broker.serving import Process
from tests.broker.wire import Wire

EVIL = "x\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\x00\x7f\x9b\u202e\u2028\u2066\ufeffend"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 東京 🚀", "plain, größer, 東京 🚀"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("\u202eabc\u2028\u2066\ufeff\U000e0041", r"\u202eabc\u2028\u2066\ufeff\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text, shown):
    assert escape(text) == shown


def record(message, *arguments, exc_info=None):
    return logging.LogRecord("millstream.broker", logging.WARNING, "", 0, message, arguments, exc_info)


def test_a_message_is_one_line():
    shown = EscapingFormatter("%(levelname)s %(message)s").format(record("closing %s: %r", EVIL, EVIL))
    assert shown.isprintable() and shown.startswith("WARNING closing x")


def test_a_long_message_is_cut():
    shown = EscapingFormatter().format(record("%s", "x" * 100_000))
    assert len(shown) < MAX_MESSAGE_CHARACTERS + 100
    assert shown.endswith("(96000 more characters)")


def test_a_traceback_has_its_lines_but_none_that_looks_like_a_message():
    try:
        raise ValueError(EVIL)
    except ValueError as e:
        shown = EscapingFormatter().format(record("failed", exc_info=(type(e), e, e.__traceback__)))
    first, *rest = shown.split("\n")
    assert first == "failed" and len(rest) > 3
    assert all(line.isprintable() and line.startswith("    ") for line in rest)


@pytest.mark.system
def test_a_client_cannot_write_lines_of_its_own(tmp_path):
    with Process(tmp_path / "data") as broker:
        with Wire(broker.address, EVIL) as wire:
            wire.ask(ApiVersionsRequest(EVIL, EVIL), 3)
            wire.ask(CreateTopicsRequest([CreatableTopic(EVIL, 1, 1)], 1000), 7)
        with Wire(broker.address) as wire:  # a version that is not served, under a name: closed, with a warning
            name = EVIL.encode()
            body = struct.pack(">hhih", 3, 999, 1, len(name)) + name
            wire.socket.sendall(struct.pack(">i", len(body)) + body)
            assert wire.closed()
    log = broker.log.read_bytes().decode()
    assert "version 999" in log and r"x\n2026-01-01" in log
    assert all(line.isprintable() for line in log.split("\n"))
    assert not any(line.endswith("ERROR forged") for line in log.split("\n"))
    assert not any(line.startswith("2026-01-01") for line in log.split("\n"))
