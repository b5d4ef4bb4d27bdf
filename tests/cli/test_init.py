"""`millstream init`: what it writes runs as it says, and a folder that has files is left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.cli.init import FILES

STARTER = Path(main.__code__.co_filename).parent / "starter"


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["init", *map(str, arguments)])
    return ended.value.code


def test_the_folder_has_what_there_is(tmp_path, capsys):
    assert run(tmp_path / "a" / "shop") in (0, None)
    assert {p.name: p.read_text() for p in (tmp_path / "a" / "shop").iterdir()} == {
        name: (STARTER / name).read_text() for name in FILES
    }
    assert {p.name for p in STARTER.iterdir() if p.is_file()} == set(FILES)
    said = capsys.readouterr().out
    assert f"cd {tmp_path / 'a' / 'shop'}" in said and "millstream run shop.py" in said
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    assert run(tmp_path / "empty", "--json") in (0, None)
    assert json.loads(capsys.readouterr().out)["files"] == list(FILES)


def test_a_folder_with_files_is_refused_with_what_to_type(tmp_path, capsys):
    (tmp_path / "shop.py").write_text("mine")
    assert run(tmp_path) == 1
    said = capsys.readouterr().err
    assert f"is not empty: it has shop.py. Name a folder that is not there yet: millstream init {tmp_path}/shop" in said
    assert [p.name for p in tmp_path.iterdir()] == ["shop.py"] and (tmp_path / "shop.py").read_text() == "mine"
    assert run(tmp_path / "shop.py") == 1
    assert "cannot be made: File exists" in capsys.readouterr().err


def test_every_command_that_it_names_exists():
    from millstream.cli import COMMANDS

    shown = re.findall(r"^\$ millstream (\w+)", (STARTER / "README.md").read_text(), re.MULTILINE)
    assert len(shown) >= 4 and set(shown) <= set(COMMANDS)


@contextmanager
def running(folder, environment):
    """`millstream run shop.py`, until it is ready."""
    log = folder / "run.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "millstream", "run", "shop.py"]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 180
        while "Ctrl-C ends everything" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


READ = """
import time
from shop import app

deadline = time.monotonic() + 60
while sum(row["sold"] for row in app.read("sales")) < 1000:
    assert time.monotonic() < deadline, app.read("sales").rows()
    time.sleep(0.2)
found = app.read("sales")
print(int(found.pandas()["sold"].sum()), found.arrow().num_rows, len(app.read("sales", limit=1)))
assert {row["product"] for row in app.read("sales", where={"product": "coffee"})} == {"coffee"}
"""


@pytest.mark.system
def test_it_runs_as_it_says(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_") or k == "MILLSTREAM_CACHE"}
    folder = tmp_path / "shop"

    def call(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=folder if folder.exists() else tmp_path, env=environment,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("-m", "millstream", "init", "shop")
    assert "2 passed" in call("-m", "pytest", "-q", "-p", "no:cacheprovider")
    with running(folder, environment):
        assert call("feed.py", "1000") == "1,000 orders sent\n"
        sold, rows, limited = map(int, call("-c", READ).split())
        assert 1000 <= sold <= 3000 and 4 <= rows <= 8 and limited == 1
        assert "coffee" in call("-m", "millstream", "views", "sales")
        tail = call("-m", "millstream", "tail", "large_orders", "--from", "earliest", "--no-follow", "--json")
        assert 0 < len(tail.splitlines()) < 1000
    done = subprocess.run([sys.executable, "feed.py", "1"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "nothing runs in" in done.stderr and "millstream run FILE" in done.stderr
