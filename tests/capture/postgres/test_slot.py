"""Names of slots."""

from __future__ import annotations

import re

import pytest

from millstream.capture.postgres.slot import MAX_NAME, slot_name


def test_a_plain_name_is_readable() -> None:
    assert slot_name("flights", "ops") == "millstream_flights_ops"


@pytest.mark.parametrize(("app", "source"), [("Flights", "ops"), ("a.b", "ops"), ("x" * 200, "y" * 200), ("é", "ops")])
def test_names_are_what_postgres_takes(app: str, source: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]{1,63}", slot_name(app, source))
    assert len(slot_name(app, source)) <= MAX_NAME


def test_names_do_not_meet() -> None:
    pairs = [("a-b", "c"), ("a.b", "c"), ("a_b", "c"), ("a", "b_c"), ("A-b", "c"), ("a", "b-c")]
    assert len({slot_name(*pair) for pair in pairs}) == len(pairs)
