"""The same demo on a real Apache Kafka and on a PostgreSQL of one's own: nothing but addresses changes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from millstream.postgresql.server import Server
from tests.apache_kafka import apache_kafka

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def test_the_demo_passes_with_every_address_given(tmp_path):
    folders = {name: tmp_path / name for name in ("kafka", "postgres", "data")}
    folders["kafka"].mkdir()
    with apache_kafka(folders["kafka"]) as kafka, Server(folders["postgres"]) as server:
        views, ops = server.database("views"), server.database("ops")
        settings = tmp_path / "millstream.toml"
        settings.write_text(
            f'kafka = "{kafka.bootstrap}"\npostgres = {json.dumps(views)}\n[sources]\nops = {json.dumps(ops)}\n'
        )
        command = [sys.executable, "-m", "millstream", "demo", "--days", "1", "--json", "--data", str(folders["data"])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr[-3000:]
        summary = json.loads(done.stdout)
        assert summary["ok"], [check for check in summary["checks"] if not check["ok"]]
        assert "broker" not in done.stderr
        assert not (folders["data"] / "log").exists()
        assert not (folders["data"] / "postgres").exists()
