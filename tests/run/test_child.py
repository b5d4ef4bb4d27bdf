"""The child's frame around a room's run(): its one line on stdout, its end, its log. The room is a stand-in."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

from millstream.run import tree
from tests.run.supervision import wait_until

# A room whose run() is given by the test, in a real child process.
_FRAME = """
import sys, types
{setup}
def main(call):
    import logging, os
    from millstream.app import load
    load(call.file)
    ready, stop = call.ready, call.stop
{body}
from millstream.run import child
sys.exit(child.main(["__main__", {file!r}]))
"""
WAITS = "ready({'console': 'http://x'}); stop.wait()"


def ended(child):
    """All output, without the end of stdin that communicate() would cause."""
    return child.stdout.read(), child.stderr.read(), child.wait(10)


@pytest.fixture
def start(tmp_path):
    application = tmp_path / "mine.py"
    application.write_text("import millstream as ms\napp = ms.App('mine')\n")
    started = []

    def start(body, setup="", file=str(application)):
        script = tmp_path / "child.py"
        script.write_text(_FRAME.format(setup=setup, body=textwrap.indent(body, "    "), file=file))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(
            [sys.executable, str(script)], text=True, start_new_session=True, cwd=tmp_path, **pipes
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_prints_ready_and_ends_on_a_signal(start):
    for number in (signal.SIGTERM, signal.SIGINT):
        child = start(WAITS)
        assert child.stdout.readline() == 'ready {"console": "http://x"}\n'
        child.send_signal(number)
        assert child.wait(10) == 0


def test_a_signal_that_does_not_wake_the_main_thread_ends_it_too(start):
    """As one that arrives just as the main thread begins to wait."""
    child = start(
        """
import signal, threading
def elsewhere():
    while not stop.is_set(): stop.wait(0.01)
other = threading.Thread(target=elsewhere, daemon=True)
other.start()
import time
threading.Timer(0.5, lambda: signal.pthread_kill(other.ident, signal.SIGTERM)).start()
"""
        + WAITS
    )
    assert child.stdout.readline().startswith("ready ")
    assert child.wait(10) == 0


def test_ends_when_stdin_ends(start):
    child = start(WAITS)
    child.stdout.readline()
    child.stdin.close()
    child.stdin = None
    assert child.wait(10) == 0


def test_what_others_print_goes_to_stderr(start):
    child = start("print('hello', flush=True); os.system('echo shell'); " + WAITS)
    assert child.stdout.readline().startswith("ready ")
    child.send_signal(signal.SIGTERM)
    out, err, _ = ended(child)
    assert out == "" and "hello" in err and "shell" in err


def test_log_lines_have_time_and_level_and_no_secrets(start):
    child = start("logging.getLogger('room').info('connecting with password=hunter2'); " + WAITS)
    child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    _, err, _ = ended(child)
    assert "INFO room: connecting with password=***" in err and "hunter2" not in err


def test_a_mistake_of_the_user_is_told_in_one_line_on_stdout(start):
    child = start(
        "from millstream.settings import MillstreamError; raise MillstreamError('no table plains; password=x')"
    )
    out, _, code = ended(child)
    word, _, facts = out.partition(" ")
    assert (word, json.loads(facts)) == ("failed", {"error": "no table plains; password=***"})
    assert code == 78


def test_a_failure_of_ours_is_a_traceback_in_the_log(start):
    child = start("raise RuntimeError('boom')")
    out, err, code = ended(child)
    assert out == "" and "RuntimeError: boom" in err and code == 1


def test_ending_without_being_asked_is_a_failure(start):
    child = start("ready({})")
    _, err, code = ended(child)
    assert code == 1 and "ended without being asked to" in err


def test_a_part_that_stops_itself_and_fails_has_failed(start):
    child = start("stop.set(); raise RuntimeError('fell apart')")
    _, err, code = ended(child)
    assert code == 1 and "fell apart" in err


def test_a_missing_application_is_told(start):
    child = start(WAITS, file="absent.py")
    out, _, code = ended(child)
    assert "the application file absent.py does not exist" in out and code == 78


def test_an_orphan_that_does_not_end_is_killed_with_what_it_started(start):
    body = """
import subprocess, time
inner = subprocess.Popen(["sleep", "60"])
ready({"inner": inner.pid})
while True: time.sleep(1)"""
    child = start(body, setup="import millstream.run.child as c; c.ORPHAN_GRACE = 0.2")
    inner = json.loads(child.stdout.readline().partition(" ")[2])["inner"]
    child.stdin.close()
    child.stdin = None
    assert child.wait(10) == -signal.SIGKILL
    wait_until(lambda: not tree.alive(inner))


def test_the_child_loads_no_client_before_its_room_does():
    said = subprocess.run(
        [sys.executable, "-c", "import sys, millstream.run.child; print(*sys.modules)"], capture_output=True, text=True
    )
    assert not {"confluent_kafka", "psycopg", "pyspark", "pandas"} & set(said.stdout.split())
