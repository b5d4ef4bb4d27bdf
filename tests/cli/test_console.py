"""`millstream console`: a link that works, at any time, for the application that runs in the data folder."""

import json
import os

import httpx
import pytest

from millstream.cli import main
from millstream.run.lock import Lock
from millstream.run.runfile import Running
from millstream.web.access import FILE
from tests.serve.test_service import console

pytestmark = pytest.mark.system


def run(*arguments):
    """Run the command line here; gives its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["console", *arguments])
    return ended.value.code or 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder that somebody runs an application in; its page is served."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / ".millstream"
    data.mkdir()
    lock = Lock(data)
    with console(sessions=data / FILE, origins=["https://page.example"]) as address:
        Running("run", "flights", os.getpid(), addresses={"console": address}).write(data)
        yield tmp_path
    lock.release()


def test_each_call_gives_another_link_that_works_once(folder, capsys):
    assert run() == 0 and run() == 0
    first, second = capsys.readouterr().out.split()
    assert first != second
    assert httpx.get(first).status_code == 303 and httpx.get(second).status_code == 303
    assert httpx.get(first).status_code == 403
    assert (folder / ".millstream" / FILE).stat().st_mode & 0o077 == 0


def test_named_origins_get_links_too_and_json_is_for_programs(folder, capsys):
    (folder / "millstream.toml").write_text('console_origins = ["https://page.example"]')
    assert run("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["app"] == "flights"
    assert said["links"][1].startswith("https://page.example/?token=")


def test_open_opens_it(folder, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run("--open") == 0
    assert opened == capsys.readouterr().out.split()


def test_where_nothing_runs_it_says_what_to_do(tmp_path, capsys):
    assert run("--data", str(tmp_path)) == 1
    assert "nothing runs in" in (said := capsys.readouterr().err) and "millstream run" in said
