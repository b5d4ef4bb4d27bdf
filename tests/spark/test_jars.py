"""Fetching the connector's jars: from a server that misbehaves, from a folder, and from nowhere."""

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from millstream.settings import MillstreamError
from millstream.spark import jars

CONTENT = os.urandom(700_000)
JAR = jars.Jar("org.example.deep", "thing_2.13", "1.2", hashlib.sha256(CONTENT).hexdigest())


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT, with ranges; `cuts` says after how many bytes to hang up, once each; `wrong` how often to lie."""

    requests: ClassVar[list[tuple[str, str | None]]] = []
    cuts: ClassVar[list[int]] = []
    wrong = 0
    status = 0

    def do_GET(self):
        kind = type(self)
        kind.requests.append((self.path, self.headers.get("Range")))
        if kind.status:
            self.send_error(kind.status)
            return
        begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if "Range" in self.headers else 0
        body = CONTENT[begin:]
        if kind.wrong:
            kind.wrong -= 1
            body = bytes(len(body))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: kind.cuts.pop(0)] if kind.cuts else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    Server.requests, Server.cuts, Server.wrong, Server.status = [], [], 0, 0
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv(jars.VARIABLE, f"http://127.0.0.1:{listening.server_port}/maven/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(jars.time, "sleep", lambda _: None)
    yield Server
    listening.shutdown()
    thread.join()
    listening.server_close()


def fetch(cache, progress=None):
    return jars.fetch(cache, progress, jars=(JAR,))


def test_downloaded_once(server, tmp_path):
    seen = []
    [path] = fetch(tmp_path, lambda *a: seen.append(a))
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/maven/org/example/deep/thing_2.13/1.2/thing_2.13-1.2.jar", None)]
    assert seen[-1] == (JAR.name, len(CONTENT), len(CONTENT))
    assert fetch(tmp_path) == [path]
    assert len(server.requests) == 1


def test_resumed_where_the_connection_broke(server, tmp_path):
    server.cuts = [300_000, 100_000]
    assert fetch(tmp_path)[0].read_bytes() == CONTENT
    assert [r for _, r in server.requests] == [None, "bytes=300000-", "bytes=400000-"]


def test_resumed_after_the_process_was_killed(server, tmp_path):
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"{JAR.name}.{dead.pid}.part").write_bytes(CONTENT[:5000])
    assert fetch(tmp_path)[0].read_bytes() == CONTENT
    assert server.requests[0][1] == "bytes=5000-"
    assert [p.name for p in (tmp_path / "jars").iterdir()] == [JAR.name]


def test_wrong_content_is_fetched_again(server, tmp_path):
    server.wrong = 1
    assert fetch(tmp_path)[0].read_bytes() == CONTENT


def test_always_wrong_content_is_refused(server, tmp_path):
    server.wrong = 99
    with pytest.raises(MillstreamError, match="SHA-256"):
        fetch(tmp_path)
    assert not list((tmp_path / "jars").iterdir())


def test_damaged_file_is_fetched_again(server, tmp_path):
    [path] = fetch(tmp_path)
    path.write_bytes(CONTENT[:-1])
    assert fetch(tmp_path)[0].read_bytes() == CONTENT


def test_missing_on_the_server_is_not_asked_for_again(server, tmp_path):
    server.status = 404
    with pytest.raises(MillstreamError, match="404"):
        fetch(tmp_path)
    assert len(server.requests) == 1


def test_server_trouble_is_tried_again(server, tmp_path):
    server.status = 503
    with pytest.raises(MillstreamError, match="503"):
        fetch(tmp_path)
    assert len(server.requests) == jars.ATTEMPTS


def test_offline(monkeypatch, tmp_path):
    monkeypatch.setenv(jars.VARIABLE, "http://127.0.0.1:9/maven")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(jars.time, "sleep", lambda _: None)
    with pytest.raises(MillstreamError) as error:
        fetch(tmp_path)
    for words in (JAR.name, "http://127.0.0.1:9/maven/org", str(tmp_path), jars.VARIABLE, "https_proxy"):
        assert words in str(error.value)


@pytest.mark.parametrize("place", [JAR.name, JAR.path])
def test_from_a_folder(monkeypatch, tmp_path, place):
    (tmp_path / "mirror" / place).parent.mkdir(parents=True)
    (tmp_path / "mirror" / place).write_bytes(CONTENT)
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path / "mirror"))
    assert fetch(tmp_path / "cache")[0].read_bytes() == CONTENT


def test_a_folder_that_lacks_it_or_has_another(monkeypatch, tmp_path):
    monkeypatch.setenv(jars.VARIABLE, str(tmp_path / "mirror"))
    with pytest.raises(MillstreamError, match="neither in"):
        fetch(tmp_path / "cache")
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / JAR.name).write_bytes(b"else")
    with pytest.raises(MillstreamError, match="not the file expected"):
        fetch(tmp_path / "cache")


def test_the_installed_pyspark_has_its_jars():
    assert {j.artifact for j in jars.pinned()} >= {"kafka-clients", "commons-pool2"}
    with pytest.raises(MillstreamError, match=r"pyspark 3\.0\.0"):
        jars.pinned("3.0.0")
