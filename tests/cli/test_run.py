"""`millstream run`: what it says of mistakes, and what it prints, with a supervisor that runs nothing."""

import json

import pytest

from millstream.cli import main
from millstream.run import supervisor
from millstream.run.engine import Status
from millstream.settings import Kafka

APPLICATION = """import millstream as ms
app = ms.App("mine")
"""


@pytest.fixture
def application(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(APPLICATION)
    return path


class Quiet(supervisor.Supervisor):
    """Says what a real one would, and starts nothing."""

    kafka = Kafka("127.0.0.1:1234")
    console = "http://127.0.0.1:5678/?token=abc"

    def start(self):
        self._watch(Status("broker", "starting", 7))
        self._watch(Status("broker", "ready", 7, seconds=0.5))

    def wait_ready(self, timeout=None):
        return True

    def wait(self, timeout=None):
        return True

    def stop(self, *, hurry=False):
        pass

    def facts(self, name):
        return {"failed": {"delays": "no such column"}}


def run(capsys, *arguments):
    try:
        main(["run", *map(str, arguments)])
    except SystemExit as end:
        code = end.code
    out = capsys.readouterr()
    return code, out.out, out.err


def test_mistakes_are_one_line_with_the_users_own_line(capsys, tmp_path, application):
    for text, said in (
        ("import millstream as ms\nx = 1 / 0\n", "line 2 failed: ZeroDivisionError: division by zero"),
        ("import millstream as ms\n", "declares no application"),
        ("import millstream as ms\na = ms.App('a')\nb = ms.App('b')\n", "declares several applications (a, b)"),
        ("import millstream as\n", "line 1 failed: SyntaxError"),
    ):
        application.write_text(text)
        code, out, err = run(capsys, application, "--data", tmp_path / "data")
        assert (code, out) == (1, "") and said in err and "Traceback" not in err
    code, _, err = run(capsys, tmp_path / "absent.py")
    assert code == 1 and "does not exist" in err
    assert not (tmp_path / "data").exists()


def test_only_loopback(capsys, application):
    code, _, err = run(capsys, application, "--listen", "0.0.0.0:9092")
    assert code == 1 and "listens on this machine only" in err


def test_people_see_the_addresses(capsys, application, monkeypatch):
    monkeypatch.setattr(supervisor, "Supervisor", Quiet)
    _, out, _ = run(capsys, application)
    assert out.splitlines() == [
        "✓ broker         ready in 0.5 s",
        "log:  127.0.0.1:1234",
        "page: http://127.0.0.1:5678/?token=abc",
        "Ctrl-C ends everything.",
    ]


def test_programs_get_a_line_for_each_change_and_the_addresses(capsys, application, monkeypatch):
    monkeypatch.setattr(supervisor, "Supervisor", Quiet)
    _, out, _ = run(capsys, application, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("state") for line in lines] == ["starting", "ready", None]
    assert lines[-1] == {"kafka": "127.0.0.1:1234", "console": "http://127.0.0.1:5678/?token=abc", "refused": {}}


def test_passwords_that_others_can_read_are_said(capsys, monkeypatch, tmp_path, application):
    monkeypatch.setattr(supervisor, "Supervisor", Quiet)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "millstream.toml"
    path.write_text('postgres = "host=db password=s3cret"')
    for mode, said in ((0o644, True), (0o600, False)):
        path.chmod(mode)
        code, out, err = run(capsys, application)
        assert code == 0
        assert ("open to other users and holds the password of postgres" in out) is said
        assert "s3cret" not in out + err
