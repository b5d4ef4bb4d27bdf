"""The command line as a whole: quick help, plain errors, quiet ends."""

import os
import resource
import signal
import subprocess
import sys

import pytest

from millstream.cli import COMMANDS, main

FAMILIES = ("groups", "topics")

NOBODY = "127.0.0.1:1"


def millstream(*arguments: str, **more: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from millstream.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_help_lists_every_command_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom millstream.cli import main\n"
        "try:\n  main(['--help'])\nexcept SystemExit:\n  pass\n"
        "heavy = ('pyspark', 'pandas', 'pyarrow', 'numpy', 'confluent_kafka', 'psycopg', 'starlette')\n"
        "print('HEAVY', [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert all(name in done.stdout for name in COMMANDS)


def test_help_is_quick():
    """By the processor's time, which other work on the machine does not lengthen much; a quiet machine needs 0.2 s."""
    times = []
    for _ in range(3):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert millstream("--help").returncode == 0
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    assert min(times) < 0.45, times


@pytest.mark.parametrize("name", [c for c in COMMANDS if c != "broker"])
def test_every_command_explains_itself_with_an_example(name):
    done = millstream(name, "--help", env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0
    assert f"Example: millstream {name}" in done.stdout or "| millstream " + name in done.stdout
    listing = millstream(name, "list", "--help", env={**os.environ, "COLUMNS": "200"}) if name in FAMILIES else done
    assert "--json" in listing.stdout


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["list"]),
        (["--json"], ["list", "--json"]),
        (["--app", "reset"], ["list", "--app", "reset"]),
        (["billing"], ["show", "billing"]),
        (["--kafka", "a:1", "billing", "--json"], ["show", "--kafka", "a:1", "billing", "--json"]),
        (["--kafka", "reset", "reset", "x"], ["reset", "--kafka", "reset", "x"]),
        (["--kafka=a:1", "delete", "x"], ["delete", "--kafka=a:1", "x"]),
        (["show", "reset"], ["show", "reset"]),
        (["--help"], ["--help"]),
        (["--json", "-h"], ["-h"]),
        (["--", "reset"], ["show", "--", "reset"]),
    ],
)
def test_list_and_show_need_not_be_said(given, meant):
    from typer.main import get_command

    from millstream.cli import application

    family = get_command(application()).commands["groups"]
    assert family._named(given) == meant


def test_the_broker_explains_itself():
    done = millstream("broker", "--help")
    assert done.returncode == 0
    assert "--listen" in done.stdout


def test_an_error_is_one_line_without_traceback():
    done = millstream("tail", "departures", "--filter", "import os")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: the filter 'import os' cannot be read")
    assert done.stderr.count("\n") == 1


def test_the_traceback_is_there_for_who_asks():
    for more in ({"env": {**os.environ, "MILLSTREAM_DEBUG": "1"}}, {}):
        arguments = () if more else ("--debug",)
        done = millstream(*arguments, "tail", "departures", "--filter", "import os", **more)
        assert "Traceback" in done.stderr


def test_a_wrong_usage_exits_with_2():
    assert millstream("tail").returncode == 2
    assert millstream("nonsense").returncode == 2


def test_passwords_in_errors_are_hidden(monkeypatch, capsys):
    from millstream.cli import views

    monkeypatch.setenv("MILLSTREAM_POSTGRES", "host=127.0.0.1 port=1 password=hunter2")
    with pytest.raises(SystemExit) as end:
        main(["views"])
    assert end.value.code == 1
    assert "hunter2" not in capsys.readouterr().err
    assert views.LIMIT


COMMAND = """
import signal, time, millstream.cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have had it ignored
def work(*arguments, **more):
    print("on", flush=True)
    {}
millstream.cli.application = lambda: work
millstream.cli.main([])
"""


def started(work: str) -> "subprocess.Popen[bytes]":
    code = COMMAND.format(work)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_is_quiet():
    with started("time.sleep(60)") as process:
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""


def test_a_closed_pipe_is_quiet():
    with started("[print('x' * 1000, flush=True) for _ in range(10**6)]") as process:
        assert process.stdout.readline() == b"on\n"
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr.read() == b""


@pytest.mark.system
def test_a_log_that_does_not_answer_is_named(monkeypatch, capsys):
    monkeypatch.setattr("millstream.cli.common.ANSWER_S", 0.5)
    with pytest.raises(SystemExit):
        main(["topics", "--kafka", NOBODY])
    assert capsys.readouterr().err.startswith(
        f"error: no Kafka broker answers at {NOBODY}; start one with `millstream broker`"
    )
