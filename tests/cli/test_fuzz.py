"""Command lines and settings files of any kind: an answer or one message in words, never a traceback, never a hang."""

import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.cli import main
from millstream.cli.filters import parse as parse_filter
from millstream.cli.moments import ago
from millstream.cli.moments import parse as parse_moment
from millstream.settings import MillstreamError, Settings

QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Nothing listens on port 1, so that no command waits for long.
FIXED = ["--kafka", "127.0.0.1:1", "--postgres", "host=127.0.0.1 port=1 connect_timeout=1", "--data", "/nonexistent/x"]
COMMANDS = ["topics", "tail", "groups", "queries", "views", "produce", "console", "log", "plan", "doctor"]
WORDS = [
    "--help",
    "--json",
    "show",
    "list",
    "reset",
    "delete",
    "create",
    "verify",
    "-n",
    "--limit",
    "--from",
    "--filter",
    "--app",
    "--topic",
    "--to-offset",
    "--to-datetime",
    "--shift-by",
    "--by-duration",
    "--execute",
    "--yes",
    "--partition",
    "--config",
    "--no-follow",
    "--to-latest",
    "--at-next-start",
    "--header",
    "--file",
    "--key-field",
    "--",
]
VALUES = st.one_of(
    st.sampled_from(
        ["flights.py", "a=b", "-1", "0", "99999999999999999999", "earliest", "10 minutes ago", "x:0,1", "", "/", "é"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run a command line here; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("millstream.cli.common.ANSWER_S", 0.05)
    for name in list(os.environ):
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)

    def run(arguments):
        monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


@QUIET
@given(
    st.sampled_from([c for c in COMMANDS if c != "doctor"]),
    st.lists(st.one_of(st.sampled_from(WORDS), VALUES), max_size=6),
)
def test_any_command_line_gets_an_answer(run, command, words):
    code, out, err = run([command, *words, *FIXED])
    assert code in (0, 1, 2), (code, err)
    assert "Traceback" not in out + err
    assert code == 0 or err.strip(), "a failure says why"


TOML = st.recursive(
    st.one_of(
        st.integers(-9, 10**18), st.text(max_size=8), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_.]{1,8}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(["data", "cache", "kafka", "postgres", "spark", "sources", "console_origins", "kafak", "x"])


def toml(value):
    """A value as TOML writes it, tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@QUIET
@given(st.dictionaries(KEYS, TOML, max_size=4))
def test_any_settings_file_is_settings_or_a_message(tmp_path, monkeypatch, values):
    for name in list(os.environ):
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)
    (tmp_path / "millstream.toml").write_text(
        "\n".join(f"{k} = {toml(v)}" for k, v in values.items()), encoding="utf-8"
    )
    try:
        loaded = Settings.load(folder=tmp_path)
    except MillstreamError as error:
        assert str(error)
    else:
        assert str(loaded) and loaded.environment()


@QUIET
@given(st.binary(max_size=200))
def test_any_bytes_as_settings_are_a_message(tmp_path, content):
    (tmp_path / "millstream.toml").write_bytes(content)
    try:
        Settings.load(folder=tmp_path)
    except MillstreamError as error:
        assert str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
EXPRESSIONS = st.lists(
    st.sampled_from(
        [
            "a",
            "b.c",
            "a[0]",
            "not",
            "and",
            "or",
            "==",
            "<",
            "in",
            "+",
            "*",
            "%",
            "/",
            "(",
            ")",
            "[1, 'x']",
            "3",
            "'t'",
            "len(a)",
            "lower(b)",
            "contains(a, 'x')",
            "null",
            "true",
            "-",
            "is",
            "**",
            "lambda: 1",
        ]
    ),
    max_size=9,
).map(" ".join)


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS | st.text(max_size=30), st.dictionaries(st.sampled_from("abc"), JSON, max_size=3))
def test_any_filter_is_a_filter_or_a_message(text, value):
    try:
        passes = parse_filter(text)
    except MillstreamError as error:
        assert str(error)
        return
    assert passes(value) in (True, False)
    assert passes.doubt() is None or isinstance(passes.doubt(), str)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=20)
    | st.from_regex(r"-?[0-9]{1,25}|P[0-9]{1,12}DT[0-9]{1,12}H|[0-9]{1,20} (days|hours|ms) ago", fullmatch=True)
)
def test_any_moment_is_a_moment_or_a_message(text):
    from datetime import UTC, datetime

    for read in (parse_moment, ago):
        try:
            read(text, datetime(2013, 1, 1, tzinfo=UTC))
        except MillstreamError as error:
            assert str(error)
