"""Finding the processes of a run."""

import os
import signal
import subprocess
import sys

import pytest

from millstream.run import tree
from tests.run.supervision import wait_until

RUN = f"tree-{os.getpid()}"


@pytest.fixture
def marked():
    environment = {**os.environ, tree.RUN_VARIABLE: RUN, tree.PROCESS_VARIABLE: "spark"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    wait_until(lambda: tree.marked(RUN))  # between fork and exec it still shows our own environment
    yield child
    child.kill()
    child.communicate()


def test_a_marked_process_is_found_by_run_and_name(marked):
    assert tree.marked(RUN) == {marked.pid: "spark"}
    assert tree.marked(RUN, "spark") == {marked.pid: "spark"}
    assert tree.marked(RUN, "broker") == {}
    assert tree.marked("another run") == {}


def test_memory_is_counted_by_name(marked):
    assert list(tree.memory(RUN)) == ["spark"] and tree.memory(RUN)["spark"] > 2**20


def test_the_dead_are_not_alive_even_before_they_are_reaped(marked):
    assert tree.alive(marked.pid) and tree.alive(os.getpid()) and tree.alive(1)
    tree.send([marked.pid, 2**22 + 1], signal.SIGKILL)
    wait_until(lambda: not tree.alive(marked.pid))
    assert tree.marked(RUN) == {}
