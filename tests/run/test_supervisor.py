"""The supervisor around tiny children: addresses, run.json, signals, the lock, taking over after a kill -9."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.app import App
from millstream.app.process import Process
from millstream.run import runfile, tree
from millstream.run.part import Step
from millstream.run.supervisor import Supervisor, file_of
from millstream.settings import MillstreamError, Settings
from tests.run.fake import Fake
from tests.run.supervision import wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def program(folder: Path, *options: str):
    """The fake as a program of its own, once it is up."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.run.fake", str(folder), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            while (line := started.stdout.readline().strip()) != "up":
                assert line or started.poll() is None, started.stderr.read()
            yield started
        finally:
            started.kill()


def gone(pids) -> bool:
    return not any(tree.alive(pid) for pid in pids)


def test_addresses_and_pids_are_known_when_it_is_ready_and_written_to_run_json(tmp_path):
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        running = runfile.current(tmp_path / "data")
        assert running.addresses["kafka"] == fake.kafka.bootstrap
        assert running.pid == os.getpid() and running.app == "fake"
        assert running.processes == {n: fake.pid(n) for n in ("broker", "capture-ops", "spark")}
        assert fake.pid("capture") == fake.pid("capture-ops")
        assert (tmp_path / "data" / "run.json").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert fake.settings().kafka == fake.kafka
        pids = list(running.processes.values())
    assert gone(pids)
    assert runfile.current(tmp_path / "data") is None
    assert not (tmp_path / "data" / "run.json").exists()


def test_children_get_the_settings_with_the_log_s_address(tmp_path):
    tell = "ready(kafka_seen=os.environ.get('MILLSTREAM_KAFKA'), data=os.environ['MILLSTREAM_DATA'])"
    with Fake(tmp_path, spark=tell) as fake:
        assert fake.wait_ready(10)
        assert fake.facts("spark") == {"kafka_seen": fake.kafka.bootstrap, "data": str(tmp_path / "data")}


def test_the_port_stays_over_restarts_of_the_process_and_of_the_supervisor(tmp_path):
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        first = fake.kafka.bootstrap
        os.kill(fake.pid("broker"), signal.SIGKILL)
        wait_until(lambda: fake.statuses()["broker"].restarts == 1 and fake.statuses()["broker"].state == "ready")
        assert fake.kafka.bootstrap == first
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        assert fake.kafka.bootstrap == first
    host, port = first.split(":")
    with socket.create_server((host, int(port))), Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        assert fake.kafka.bootstrap != first


def test_two_supervisors_cannot_have_one_folder_and_the_message_names_the_first(tmp_path):
    with Fake(tmp_path) as first:
        assert first.wait_ready(10)
        with pytest.raises(MillstreamError, match=f"in use by process {os.getpid()}"):
            Fake(tmp_path).start()
        assert first.pid("broker")


def test_a_signal_ends_everything_in_order(tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        folder = tmp_path / number.name
        folder.mkdir()
        with program(folder) as started:
            pids = list(runfile.current(folder / "data").processes.values())
            assert len(pids) == 3
            started.send_signal(number)
            assert started.wait(10) == 0
            assert started.stdout.read().split() == ["over"]
        assert gone(pids)
        said = [json.loads(line) for line in (folder / "said.jsonl").read_text().splitlines()]
        assert [name for name, what, _ in said if what == "end"] == ["spark", "capture", "broker"]


def test_a_killed_supervisor_takes_its_children_along(tmp_path):
    with program(tmp_path) as started:
        pids = list(runfile.current(tmp_path / "data").processes.values())
        assert len(pids) == 3
        started.kill()
        wait_until(lambda: gone(pids))
    assert runfile.current(tmp_path / "data") is None
    assert runfile.left_over(tmp_path / "data").processes  # what it left, for the next one


def test_the_next_one_waits_for_what_a_killed_supervisor_left_and_ends_it(tmp_path):
    with program(tmp_path, "stubborn") as started:
        pids = runfile.current(tmp_path / "data").processes
        started.kill()
        started.wait()
    assert tree.alive(pids["spark"])
    said = []
    with Fake(tmp_path, say=said.append) as fake:
        assert gone(pids.values())
        assert fake.wait_ready(10)
    assert any(str(pids["spark"]) in line for line in said)


def test_extra_parts_join_and_a_step_for_once_runs_once(tmp_path):
    done = []
    for _ in range(2):
        seed = Step("seed", call=done.append, after={"broker"}, before={"capture"}, once=True)
        replay = (sys.executable, "-c", "print('ready {}', flush=True)")
        with Fake(tmp_path, extra=[seed, Process("replay", replay, frozenset({"spark"}), ends=True)]) as fake:
            assert fake.wait_exit("replay", 10) == 0
            assert fake.wait_ready(10)
    assert len(done) == 1


def test_waiting_for_the_end_of_what_does_not_end_says_so(tmp_path):
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        with pytest.raises(MillstreamError, match="spark has not ended by itself: it is ready"):
            fake.wait_exit("spark", 0.05)
        with pytest.raises(MillstreamError, match="there is no process 'sparks'; there are broker, capture-ops, spark"):
            fake.pid("sparks")


def test_not_ready_in_time_names_what_is_missing(tmp_path):
    with (
        Fake(tmp_path, spark="") as fake,
        pytest.raises(MillstreamError, match=r"not ready after 1 s: spark \(starting\)"),
    ):
        fake.wait_ready(1)


def test_what_was_given_up_is_raised_to_who_waits_and_the_folder_is_free_again(tmp_path):
    with (
        pytest.raises(MillstreamError, match="spark ended with exit code 1 before it was ready"),
        Fake(tmp_path, spark="sys.exit(1)") as fake,
    ):
        fake.wait_ready(10)
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)


def test_asked_to_end_while_starting_is_no_failure(tmp_path):
    with Fake(tmp_path, spark="") as fake:
        wait_until(lambda: fake.statuses().get("spark") and fake.statuses()["spark"].state == "starting")
        fake.ask_to_stop()
        assert fake.wait_ready(10) is False
        assert fake.wait(10) is True


def test_a_taken_port_that_the_user_gave_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(MillstreamError, match=f"the console cannot listen on {address}: the port is taken"):
            Fake(tmp_path, listen={"console": address}).start()


@pytest.mark.parametrize("address", ["0.0.0.0:80", "192.168.1.2:9092"])
def test_only_loopback_is_listened_on(tmp_path, address):
    with pytest.raises(MillstreamError, match="listens on this machine only"):
        Fake(tmp_path, listen={"broker": address})


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(MillstreamError, match=f"the data folder {tmp_path}/data cannot be written"):
        Fake(tmp_path).start()


def test_the_file_of_an_application_is_found(tmp_path):
    from millstream.app import load

    path = tmp_path / "mine.py"
    path.write_text("import millstream as ms\nflights = ms.App('flights')\n")
    assert file_of(load(str(path))) == f"{path}:flights"
    with pytest.raises(MillstreamError, match="is no variable of a module"):
        file_of(App("nowhere"))


def test_nothing_is_touched_before_the_start(tmp_path):
    Supervisor(App("mine"), Settings(data=tmp_path / "data"), file="mine.py")
    assert not (tmp_path / "data").exists()


def test_a_supervisor_that_was_not_started_says_so(tmp_path):
    with pytest.raises(MillstreamError, match="was not started"):
        Fake(tmp_path).wait_ready()


def test_memory_of_a_run_counts_descendants(tmp_path):
    began = time.monotonic()
    with Fake(tmp_path) as fake:
        assert fake.wait_ready(10)
        found = tree.memory(fake.run)
        assert set(found) == {"broker", "capture-ops", "spark"}
        assert all(2**20 < size < 2**28 for size in found.values())
    assert time.monotonic() - began < 10
