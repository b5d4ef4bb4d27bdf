"""run.json and ports.json."""

import json
import socket

from millstream.run.lock import Lock
from millstream.run.runfile import Running, current, left_over, port_is_free, read_ports, remove, write_ports


def test_what_runs_is_read_back_while_the_lock_is_held(tmp_path):
    running = Running(
        "abc", "flights", 42, {"broker": 43}, {"kafka": "127.0.0.1:1", "console": "http://127.0.0.1:2/?token=x"}
    )
    running.write(tmp_path)
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    assert current(tmp_path) is None
    assert left_over(tmp_path) == running
    lock = Lock(tmp_path)
    assert current(tmp_path) == running
    lock.release()
    remove(tmp_path)
    remove(tmp_path)
    assert left_over(tmp_path) is None


def test_a_file_of_yesterday_is_read(tmp_path):
    (tmp_path / "run.json").write_text(
        '{"version": 1, "run": "r", "app": "flights", "pid": 7, "processes": {"broker": 8}, "addresses": {"kafka": "a:9"}}'
    )
    assert left_over(tmp_path) == Running("r", "flights", 7, {"broker": 8}, {"kafka": "a:9"})


def test_what_cannot_be_read_is_nothing(tmp_path):
    for text in (
        "",
        "[]",
        "{",
        '{"version": 1}',
        '{"version": 99, "run": "r"}',
        '{"version": 1, "run": 1, "processes": 3}',
    ):
        (tmp_path / "run.json").write_text(text)
        assert left_over(tmp_path) is None


def test_addresses_are_not_shown_where_a_running_is_printed():
    assert "secret" not in repr(Running("r", "a", 1, addresses={"postgres": "password=secret"}))


def test_ports_are_remembered(tmp_path):
    assert read_ports(tmp_path) == {}
    write_ports(tmp_path, {"broker": 4711})
    assert read_ports(tmp_path) == {"broker": 4711}
    assert json.loads((tmp_path / "ports.json").read_text())["version"] == 1
    (tmp_path / "ports.json").write_text("damaged")
    assert read_ports(tmp_path) == {}


def test_a_port_that_somebody_listens_on_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)
