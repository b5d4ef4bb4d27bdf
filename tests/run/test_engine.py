"""The engine with tiny real children: order, readiness, restarts, giving up, leftovers, the end."""

import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from millstream.app.process import Process
from millstream.run import tree
from millstream.run.part import Context, Step
from millstream.settings import MillstreamError
from tests.run.supervision import QUICK, all_ready, wait_until


def process(children, name, body="ready()", needs=(), **more):
    return Process(name, children.script(name, body), frozenset(needs), **more)


def test_starts_each_part_when_what_it_needs_is_ready(children, recorder):
    parts = [
        process(children, "spark", needs={"topics", "capture"}),
        process(children, "capture", needs={"topics"}),
        process(children, "broker", 'ready(kafka="127.0.0.1:1")'),
        Step("topics", call=lambda context: None, after={"broker"}),
    ]
    run = recorder(*parts)
    with run as engine:
        assert engine.wait_for(all_ready, 10)
        assert children.said() == [
            ("broker", "start"),
            ("broker", "ready"),
            ("capture", "start"),
            ("capture", "ready"),
            ("spark", "start"),
            ("spark", "ready"),
        ]
        assert run.facts["broker"] == {"kafka": "127.0.0.1:1"}
        assert run.states("spark") == ["waiting", "starting", "ready"]


def test_ends_in_reverse_order_of_need(children, recorder):
    parts = [
        process(children, "broker"),
        process(children, "capture", needs={"broker"}),
        process(children, "spark", needs={"capture"}),
    ]
    with recorder(*parts) as engine:
        assert engine.wait_for(all_ready, 10)
        engine.stop()
        assert engine.join(10)
    assert [name for name, what in children.said() if what == "end"] == ["spark", "capture", "broker"]
    assert engine.failure is None
    assert {s.state for s in engine.statuses().values()} == {"stopped"}


def test_starts_again_what_was_killed_and_leaves_the_others_alone(children, recorder):
    parts = [process(children, "broker"), process(children, "spark", needs={"broker"})]
    with recorder(*parts) as engine:
        assert engine.wait_for(all_ready, 10)
        os.kill(children.pids("broker")[0], signal.SIGKILL)
        assert engine.wait_for(lambda s: s["broker"].restarts == 1 and all_ready(s), 10)
        assert len(children.pids("broker")) == 2
        assert len(children.pids("spark")) == 1


def test_does_not_start_again_what_needs_a_part_that_is_away(children, recorder, tmp_path):
    gate = tmp_path / "gate"
    wait = f"""
import os.path
while len([l for l in open(said) if '"broker", "start"' in l]) > 1 and not os.path.exists({str(gate)!r}): time.sleep(0.01)
ready()"""
    parts = [process(children, "broker", wait), process(children, "spark", needs={"broker"})]
    with recorder(*parts) as engine:
        assert engine.wait_for(all_ready, 10)
        for name in ("broker", "spark"):
            os.kill(children.pids(name)[0], signal.SIGKILL)
        wait_until(lambda: len(children.pids("broker")) == 2)
        assert engine.wait_for(lambda s: s["spark"].state == "restarting", 5)
        gate.touch()
        assert engine.wait_for(lambda s: s["spark"].restarts == 1 and all_ready(s), 10)
        said = children.said()
        assert said.index(("broker", "ready"), said.index(("broker", "ready")) + 1) < len(said) - 1 - said[::-1].index(
            ("spark", "start")
        )


def test_gives_up_what_never_becomes_ready_with_its_last_lines(children, recorder, tmp_path):
    body = 'print("the disk is on fire", file=sys.stderr); sys.exit(3)'
    with recorder(process(children, "broker"), process(children, "spark", body, {"broker"})) as engine:
        with pytest.raises(MillstreamError) as caught:
            engine.wait_for(all_ready, 10)
        assert engine.join(10)
    text = str(caught.value)
    assert "spark ended with exit code 3 before it was ready (tried 3 times)" in text
    assert "the disk is on fire" in text and str(tmp_path / "logs" / "spark.log") in text
    assert len(children.pids("spark")) == 3
    assert ("broker", "end") in children.said()


def test_a_mistake_of_the_user_is_not_tried_again(children, recorder):
    body = """print('failed {"error": "no such table: plains"}', flush=True); sys.exit(78)"""
    expected = pytest.raises(MillstreamError, match=r"^capture: no such table: plains$")
    with recorder(process(children, "capture", body)) as engine, expected:
        engine.wait_for(all_ready, 10)
    assert len(children.pids("capture")) == 1


def test_a_complaint_while_something_below_was_away_is_tried_again(children, recorder, tmp_path):
    body = """
if len([l for l in open(said) if '"capture", "start"' in l]) == 1:
    broker = [json.loads(l)[2] for l in open(said) if '"broker", "start"' in l][0]
    os.kill(broker, signal.SIGKILL)
    while len([l for l in open(said) if '"broker", "ready"' in l]) < 2: time.sleep(0.01)
    sys.exit(78)
ready()"""
    parts = [process(children, "broker"), process(children, "capture", body, {"broker"})]
    with recorder(*parts) as engine:
        assert engine.wait_for(all_ready, 10)
        assert len(children.pids("capture")) == 2


def test_a_process_that_hangs_before_it_is_ready_is_killed(children, recorder):
    hang = process(children, "hang", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", ready_within=0.3)
    with recorder(hang) as engine, pytest.raises(MillstreamError, match=r"not ready within 0 s .tried 3 times"):
        engine.wait_for(all_ready, 10)


def test_a_start_that_takes_long_shows_the_last_line_of_its_log(children, recorder, tmp_path):
    gate = tmp_path / "gate"
    body = f"""
import os.path
print("waiting for a lock", file=sys.stderr, flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.01)
ready()"""
    run = recorder(process(children, "broker", body), pace=replace(QUICK, slow=0.2))
    with run as engine:
        assert engine.wait_for(lambda s: s["broker"].text == "starting; its log: waiting for a lock", 10)
        gate.touch()
        assert engine.wait_for(all_ready, 10)
    assert run.states("broker")[:3] == ["waiting", "starting", "ready"]


def test_a_process_that_does_not_end_is_killed_after_its_grace(children, recorder):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()"
    with recorder(process(children, "deaf", body, grace=0.2)) as engine:
        assert engine.wait_for(all_ready, 10)
        began = time.monotonic()
        engine.stop()
        assert engine.join(10)
        assert 0.2 <= time.monotonic() - began < 5


def test_a_hurry_kills_without_grace(children, recorder):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready()"
    parts = [process(children, "below", body, grace=60), process(children, "above", body, {"below"}, grace=60)]
    with recorder(*parts) as engine:
        assert engine.wait_for(all_ready, 10)
        engine.stop()
        engine.stop(hurry=True)
        assert engine.join(5)


GRANDCHILD = """
import subprocess
child = subprocess.Popen([sys.executable, "-I", "-S", "-c",
    "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
ready(grandchild=child.pid)
"""


def test_what_a_dead_process_left_behind_ends_before_the_next_start(children, recorder):
    run = recorder(process(children, "driver", GRANDCHILD), pace=QUICK.__class__(first=0.01, sweep=0.3))
    with run as engine:
        assert engine.wait_for(all_ready, 10)
        orphan = run.facts["driver"]["grandchild"]
        os.kill(children.pids("driver")[0], signal.SIGKILL)
        assert engine.wait_for(lambda s: s["driver"].restarts == 1 and all_ready(s), 10)
        assert not tree.alive(orphan)
        last = run.facts["driver"]["grandchild"]
        assert tree.alive(last)
    assert not tree.alive(last)


def test_steps_run_between_parts_and_tell_how_far_they_are(children, recorder, tmp_path):
    def fill(context: Context) -> None:
        assert context.settings.data == tmp_path
        context.progress("half way")

    parts = [
        process(children, "postgres"),
        process(children, "capture"),
        Step("fill", call=fill, after={"postgres"}, before={"capture"}),
        Step("seed", (sys.executable, "-c", "print('seeded')"), after={"fill"}, before={"capture"}),
    ]
    run = recorder(*parts)
    with run as engine:
        assert engine.wait_for(all_ready, 10)
        assert engine.exit_code("seed") == 0
    assert "half way" in [s.text for s in run.statuses if s.name == "fill"]
    assert "seeded" in (tmp_path / "logs" / "seed.log").read_text()


def test_a_step_that_needs_the_user_ends_the_run_and_another_failure_is_tried_again(children, recorder):
    calls = []

    def flaky(context: Context) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not yet")

    def refuse(context: Context) -> None:
        raise MillstreamError("the jar is missing; connect to the network")

    with recorder(Step("flaky", call=flaky)) as engine:
        assert engine.wait_for(all_ready, 10)
    assert len(calls) == 3
    with recorder(Step("refuse", call=refuse)) as engine, pytest.raises(MillstreamError, match="the jar is missing"):
        engine.wait_for(all_ready, 10)


def test_a_process_that_may_end_is_done_and_its_exit_code_known(children, recorder):
    parts = [
        process(children, "replay", "ready(); sys.exit(0)", ends=True),
        process(children, "after", needs={"replay"}),
    ]
    with recorder(*parts) as engine:
        assert engine.wait_for(lambda s: "replay" in s and s["replay"].state == "done" and all_ready(s), 10)
        assert engine.exit_code("replay") == 0
        assert len(children.pids("replay")) == 1


def test_logs_have_the_lines_of_the_process_and_no_secrets(children, recorder, tmp_path):
    body = "print('password=hunter2 in a line', file=sys.stderr); print('on stdout', flush=True); ready()"
    with recorder(process(children, "chatty", body)) as engine:
        assert engine.wait_for(all_ready, 10)
        engine.stop()
        assert engine.join(10)
    text = (tmp_path / "logs" / "chatty.log").read_text()
    assert "password=*** in a line" in text and "on stdout" in text and "hunter2" not in text
    assert (tmp_path / "logs" / "chatty.log").stat().st_mode & 0o777 == 0o600


def test_a_flood_of_output_with_an_endless_line_is_taken(children, recorder, tmp_path):
    body = "sys.stderr.write('x' * 300_000); sys.stderr.write('\\nlast line\\n'); sys.stderr.flush(); ready()"
    with recorder(process(children, "flood", body)) as engine:
        assert engine.wait_for(all_ready, 10)
    lines = (tmp_path / "logs" / "flood.log").read_text().splitlines()
    assert max(len(line) for line in lines) <= 16 * 1024
    assert sum(line.count("x") for line in lines if set(line) == {"x"}) == 300_000
    assert any("last line" in line for line in lines)


def test_an_idle_engine_sleeps(children, recorder):
    with recorder(process(children, "idle")) as engine:
        assert engine.wait_for(all_ready, 10)
        before = time.process_time()
        engine.join(0.5)
        assert time.process_time() - before < 0.1
