"""The program that ties a child to its parent's life."""

import os
import subprocess
import sys
from pathlib import Path

import millstream.run.launch as launch
from millstream.run import tree
from tests.run.supervision import wait_until

LAUNCH = [sys.executable, "-I", "-S", launch.__file__]


def test_it_becomes_the_command():
    done = subprocess.run([*LAUNCH, str(os.getpid()), "echo", "a b", "c"], capture_output=True, text=True)
    assert done.stdout == "a b c\n" and done.returncode == 0


def test_a_command_that_is_not_there_is_named():
    done = subprocess.run([*LAUNCH, str(os.getpid()), "/no/such/program"], capture_output=True, text=True)
    assert done.returncode == 1 and "/no/such/program cannot be started: No such file" in done.stderr


def test_nothing_starts_when_the_parent_is_gone_already():
    done = subprocess.run([*LAUNCH, "1", "echo", "started"], capture_output=True, text=True)
    assert done.stdout == "" and done.returncode == 0


def test_the_command_ends_when_its_parent_is_killed():
    start = f"p = subprocess.Popen({LAUNCH!r} + [str(os.getpid()), 'sleep', '60'])"
    code = f"import subprocess, os; {start}; print(p.pid); input()"
    parent = subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    child = int(parent.stdout.readline())
    wait_until(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not tree.alive(child))
