"""A few rounds of each torture; the commands take more."""

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.system, pytest.mark.proof]


@pytest.mark.parametrize(
    ("name", "rounds"), [("power", 3), ("kill", 3), ("eio", 1), ("truncation", 2), ("flips", 20), ("full_disk", 1)]
)
def test_a_few_rounds(name, rounds):
    if name in ("power", "eio") and shutil.which("cc") is None:
        pytest.skip("the disk that forgets is compiled with cc")
    command = [sys.executable, "-m", f"tests.torture.{name}", "--rounds", str(rounds), "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if "cannot be mounted here" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
