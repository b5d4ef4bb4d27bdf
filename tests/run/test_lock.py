"""The lock on a data folder."""

import os
import subprocess
import sys

import pytest

from millstream.run.lock import Lock, held
from millstream.settings import MillstreamError
from tests.run.supervision import wait_until


def test_held_until_released(tmp_path):
    assert not held(tmp_path)
    lock = Lock(tmp_path)
    assert held(tmp_path)
    with pytest.raises(MillstreamError, match=f"in use by process {os.getpid()}"):
        Lock(tmp_path)
    lock.release()
    assert not held(tmp_path)
    Lock(tmp_path).release()


def test_looking_changes_nothing(tmp_path):
    held(tmp_path)
    held(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_children_do_not_inherit_it(tmp_path):
    lock = Lock(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    lock.release()
    wait_until(lambda: not held(tmp_path))  # its copy is closed while it becomes another program
    child.communicate(b"\n")
