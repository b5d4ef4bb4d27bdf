"""The command: one ready line, clear errors, quick ends, small and light."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.serving import Process
from tests.broker.wire import Wire

pytestmark = pytest.mark.system


def run(*arguments, timeout=20):
    command = [sys.executable, "-m", "millstream.broker", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_help_shows_an_example():
    assert "millstream broker --data ./log --listen" in run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:0"], "refusing to listen on 0.0.0.0"),
        (["--listen", "nowhere"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--set", "num.partition=2"], "did you mean num.partitions?"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(tmp_path, arguments, text):
    ended = run("--data", tmp_path / "data", *arguments)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--data", tmp_path / "data", "--listen", f"127.0.0.1:{port}")
    assert ended.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken; choose another" in ended.stderr


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    ended = run("--data", tmp_path / "file", "--listen", "127.0.0.1:0")
    assert ended.returncode == 1
    assert "choose another with --data" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_even_with_long_polls(tmp_path, how):
    with Process(tmp_path / "data") as broker, Wire(broker.address) as wire:
        wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 12)
        fetch = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000)
        fetch.topics = [FetchTopic("t", bytes(16), [FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)])]
        wire.send(fetch, 12)
        begin = time.monotonic()
        assert broker.end(how) == 0
        assert time.monotonic() - begin < 3
        assert wire.closed()
        assert "Traceback" not in broker.log.read_text()


def test_it_is_light(tmp_path):
    begin = time.monotonic()
    with Process(tmp_path / "data") as broker:
        ready = time.monotonic() - begin
        with open(f"/proc/{broker.popen.pid}/status") as f:
            rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
        with open(f"/proc/{broker.popen.pid}/maps") as f:
            maps = f.read()
    assert rss < 48_000, f"{rss} kB"
    assert ready < 5  # 0.4 s on a quiet machine
    for heavy in ("pandas", "pyarrow", "pyspark", "numpy"):
        assert heavy not in maps


def test_it_loads_no_heavy_packages():
    code = (
        "import sys, millstream.broker.server, millstream.broker.command\n"
        "from millstream.broker.apis import APIS\n"
        "for served in APIS.values(): served.load()\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'pandas', 'pyarrow', 'pyspark', 'numpy', 'typer'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_it_ends_with_standard_input_when_asked(tmp_path):
    command = [sys.executable, "-m", "millstream.broker", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
    popen = subprocess.Popen([*command, "--stop-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert popen.stdout.readline().startswith("ready ")
    popen.stdin.close()
    assert popen.wait(10) == 0
    popen.stdout.close()
