"""`millstream demo`: what its options become, and its exit code, with a demo that runs nothing."""

import json

import pytest

from millstream.cli import demo as command
from millstream.cli import main
from millstream.demo import demo as room
from millstream.demo.replay import Options
from millstream.demo.summary import Summary


def summary(*checks):
    return Summary(1, 850, 1.0, 2.0, 850.0, {}, 0, 0, {}, {}, [], list(checks))


@pytest.fixture
def demo(monkeypatch, capsys):
    asked = []

    def demo(*arguments, result=None):
        def run(wanted, settings, *, say, watch, progress, finished):
            asked.append(wanted)
            progress(
                {
                    "state": "running",
                    "sent": 1200,
                    "total": 2400,
                    "rate": 99.6,
                    "event_time": "2013-01-01T05:17:00+00:00",
                }
            )
            if result:
                finished(result)
            return result

        monkeypatch.setattr(room, "run", run)
        code = 0
        try:
            main(["demo", *arguments])
        except SystemExit as end:
            code = end.code
        return code or 0, asked[-1] if asked else None, capsys.readouterr()

    return demo


def test_options(demo):
    code, wanted, _ = demo("--days", "3", "--speed", "3600", "--keep", "--reset")
    assert code == 0 and wanted.replay == Options(3, 3600.0) and wanted.keep and wanted.reset and not wanted.open
    assert demo("--bad", "0", "--seed", "5")[1].replay == Options(7, None, bad=0, seed=5)


def test_how_far_it_is(demo):
    assert "replay         1,200 of 2,400 events, 2013-01-01 05:17, 100 per second" in demo()[2].out
    assert command._how_far({"state": "done"}) == ""


def test_a_wrong_speed_is_named(demo):
    code, wanted, out = demo("--speed", "fast")
    assert code == 1 and wanted is None and "fast" in out.err


def test_the_exit_code_is_the_verdict(demo):
    from millstream.demo.checks import Check

    assert demo(result=summary())[0] == 0
    code, _, out = demo("--json", result=summary(Check("view", False, "differs")))
    assert code == 1 and json.loads(out.out)["ok"] is False
