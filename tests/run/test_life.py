"""One life of a child: its lines, its end, what it leaves."""

import os
import signal
import sys

import pytest

from millstream.run import tree
from millstream.run.life import MAX_LINE, Life, facts_in, in_words
from tests.run.supervision import wait_until

# Starts a child, says its pid and waits for it.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
print("up", child.pid)
child.wait()
"""


@pytest.fixture
def start():
    lives = []

    def start(code):
        lives.append(Life(f"life-{os.getpid()}", "child", [sys.executable, "-I", "-S", "-uc", code], {"GIVEN": "yes"}))
        return lives[-1]

    yield start
    for life in lives:
        life.kill()
        wait_until(lambda life=life: life.code is not None)
        life.close()


def all_lines(life):
    wait_until(lambda: life.code is not None)
    return list(life.lines())


def test_lines_are_told_apart_by_their_pipe(start):
    life = start(
        "import sys, os; print('out', os.environ['GIVEN']); print('err', file=sys.stderr); print('no end', end='')"
    )
    lines = all_lines(life) + list(life.lines())
    assert sorted(lines) == [(False, "err"), (True, "no end"), (True, "out yes")]


def test_a_long_line_comes_in_pieces(start):
    life = start(f"print('x' * {MAX_LINE * 2 + 5})")
    assert [len(line) for _, line in all_lines(life)] == [MAX_LINE, MAX_LINE, 5]


def test_stdin_stays_open_until_it_is_closed(start):
    life = start("import sys; print('up'); sys.stdin.read()")
    wait_until(lambda: any(line == "up" for _, line in life.lines()))
    assert life.code is None
    life.close()
    wait_until(lambda: life.code == 0)


def test_it_is_found_by_its_mark_with_what_it_started(start):
    life = start(PARENT)
    line = wait_until(lambda: [line for _, line in life.lines()])[0]
    wait_until(lambda: life.left() == {life.pid, int(line.split()[1])})
    life.kill()
    wait_until(lambda: not life.left())
    assert life.code == -signal.SIGKILL


def test_it_is_killed_before_what_it_started(start, monkeypatch):
    """Or it would see its children die and act on that: here it would end by itself, with 0."""
    life = start(PARENT)
    line = wait_until(lambda: [line for _, line in life.lines()])[0]
    child = int(line.split()[1])

    def slowly(pids, number):
        for pid in sorted(pids, key=lambda pid: pid != child):
            os.kill(pid, number)
            wait_until(lambda pid=pid: not tree.alive(pid))

    monkeypatch.setattr(tree, "send", slowly)
    life.kill()
    wait_until(lambda: life.code is not None)
    assert life.code == -signal.SIGKILL


def test_facts_in_a_line():
    assert facts_in("ready", 'ready {"kafka": "a:1"}') == {"kafka": "a:1"}
    assert facts_in("ready", "ready") == {}
    for other in ("ready to go", "ready [1]", "readyish {}", "", 'failed {"error": "x"}'):
        assert facts_in("ready", other) is None


def test_ends_in_words():
    assert in_words(3) == "ended with exit code 3"
    assert in_words(-9) == "killed by SIGKILL"
    assert in_words(-99) == "killed by signal 99"
