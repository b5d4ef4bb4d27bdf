"""Taking over a folder from a killed supervisor."""

import os
import subprocess
import sys

import pytest

from millstream.run import runfile, tree
from millstream.run.restarts import Pace
from millstream.run.takeover import take_over
from tests.run.supervision import wait_until

RUN = f"takeover-{os.getpid()}"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); input()"


@pytest.fixture
def left():
    environment = {**os.environ, tree.RUN_VARIABLE: RUN, tree.PROCESS_VARIABLE: "spark"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", DEAF], env=environment, **pipes)
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


def test_nothing_to_take_over(tmp_path):
    take_over(tmp_path, Pace(), lambda text: pytest.fail(text))


def test_what_does_not_end_in_time_is_killed_and_the_file_removed(tmp_path, left):
    runfile.Running(RUN, "flights", 4711, processes={"spark": left.pid}).write(tmp_path)
    said = []
    take_over(tmp_path, Pace(takeover=0.2), said.append)
    wait_until(lambda: left.poll() is not None)
    assert "process 4711" in said[0] and str(left.pid) in said[0] and "killing" in said[1]
    assert runfile.left_over(tmp_path) is None


def test_a_foreign_process_that_got_the_number_of_an_old_one_is_left_alone(tmp_path, left):
    runfile.Running("an older run", "flights", 4711, processes={"spark": left.pid}).write(tmp_path)
    take_over(tmp_path, Pace(takeover=0.2), lambda text: pytest.fail(text))
    assert left.poll() is None
