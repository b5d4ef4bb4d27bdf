"""What a human sees of the parts' changes."""

import io

from rich.console import Console

from millstream.run import progress
from millstream.run.engine import Status
from millstream.run.progress import Progress, describe


def line(before, now):
    return describe(Status("broker", before) if before else None, now)


def test_what_is_worth_a_line():
    assert line("starting", Status("broker", "ready", 7, seconds=0.44)) == "[green]✓[/] broker         ready in 0.4 s"
    assert "restart 2" in line("starting", Status("broker", "ready", 7, restarts=2))
    assert "done in 1.0 s" in line("starting", Status("broker", "done", seconds=1))
    assert "killed by SIGKILL" in line("ready", Status("broker", "restarting", text="killed by SIGKILL"))
    assert "given up" in line("starting", Status("broker", "failed"))
    assert "ended in 2.0 s" in line("stopping", Status("broker", "stopped", seconds=2))


def test_what_is_not():
    assert line(None, Status("broker", "waiting")) == ""
    assert line("waiting", Status("broker", "starting")) == ""
    assert line("waiting", Status("broker", "stopped")) == ""
    assert line("waiting", Status("broker", "done")) == ""
    assert line("restarting", Status("broker", "restarting", text="again")) == ""


def shown(terminal, *statuses):
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=terminal, width=60, no_color=True)) as progress:
        for status in statuses:
            progress.show(status)
        progress.say("[a remark] that is longer than sixty characters, which is the width of this terminal")
    return out.getvalue()


def test_plain_lines_when_piped():
    text = shown(False, Status("b", "waiting"), Status("b", "starting", 1), Status("b", "ready", 1, seconds=0.44))
    assert text == (
        "✓ b              ready in 0.4 s\n"
        "[a remark] that is longer than sixty characters, which is the width of this terminal\n"
    )


def test_a_long_step_tells_how_far_it_is_when_piped(monkeypatch):
    monkeypatch.setattr(progress, "NEWS_EVERY", 0.0)
    text = shown(
        False, Status("jars", "waiting"), Status("jars", "starting"), Status("jars", "starting", text="1 of [4]")
    )
    assert text.startswith("· jars           1 of [4] (0 s)\n")


def test_on_a_terminal_a_table_moves_and_leaves_lines():
    text = shown(True, Status("b", "waiting"), Status("b", "starting", 1, text="[x]"), Status("b", "ready", 1))
    assert "ready in 0.0 s" in text and "remark" in text
