"""`millstream doctor`: its output and its exit code."""

import json

import pytest

from millstream.cli import main
from millstream.run import checks
from millstream.run.checks import Finding

SOUND = [Finding("python", "ok", "Python 3.13"), Finding("memory", "note", "1 GB", "End other programs.")]
BROKEN = [*SOUND, Finding("java", "broken", "does not work", "Spark needs Java [17].")]


@pytest.fixture
def doctor(monkeypatch, capsys):
    def doctor(findings, *arguments):
        monkeypatch.setattr(checks, "examine", lambda settings, graph: iter(findings))
        code = 0
        try:
            main(["doctor", *arguments])
        except SystemExit as end:
            code = end.code
        return code or 0, capsys.readouterr().out

    return doctor


def test_everything_is_there(doctor):
    code, out = doctor(SOUND)
    assert code == 0
    assert out.splitlines() == [
        "✓ python           Python 3.13",
        "! memory           1 GB",
        "                   → End other programs.",
        "Everything needed is there.",
    ]


def test_something_is_broken(doctor):
    code, out = doctor(BROKEN)
    assert code == 1
    assert "✗ java             does not work" in out and "→ Spark needs Java [17]." in out
    assert out.endswith("1 of these must be mended.\n")


def test_for_programs(doctor):
    code, out = doctor(BROKEN, "--json")
    assert code == 1
    assert json.loads(out)[0] == {"name": "python", "verdict": "ok", "found": "Python 3.13", "advice": ""}
