"""Spark on a cluster of workers that have disks of their own: state lives in `checkpoints`, and survives a worker's loss."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millstream.settings import Settings
from millstream.spark.java import java_home
from tests.brokers import wait_until

pytestmark = [pytest.mark.system, pytest.mark.proof]
START_S = 60.0

DRIVER = """
import json, sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.spark.context import Context
from millstream.spark.session import session
from tests.spark.streams import Memory

data, master, checkpoints = sys.argv[1:]
options = {"spark.executor.memory": "512m", "spark.cores.max": "2", "spark.driver.host": "127.0.0.1"}
shared = Path(checkpoints) if checkpoints else None
settings = Settings(data=Path(data), spark=master, spark_options=options, checkpoints=shared)
spark = session("it", settings, connector=False)
print(json.dumps({"partitions": spark.conf.get("spark.sql.shuffle.partitions")}), flush=True)
context = Context(spark, "it", replace(settings, kafka=Kafka("127.0.0.1:1")), None)
stream = Memory(spark)
seen = []

def write(batch, number):
    seen.extend(tuple(r) for r in batch.collect())

def start():
    counts = stream.frame.groupBy("value").count()
    return context.named(counts, "counts", "update", timedelta(0)).foreachBatch(write).start()

try:
    query = start()
except MillstreamError as error:
    print(json.dumps({"refused": str(error)}), flush=True)
    sys.exit()
for line in sys.stdin:
    seen.clear()
    stream.add(*line.split())
    query.processAllAvailable()
    print(json.dumps(sorted(seen)), flush=True)
"""


class Cluster:
    """A standalone master and its workers; a worker's disk is its own."""

    def __init__(self, folder, hidden):
        self.folder, self.hidden = folder, hidden
        self.processes = []
        self.home = java_home(Settings.load().cache)
        self.port = 0
        folder.mkdir()

    def _java(self, name, arguments, prefix=()):
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars"
        environment = os.environ | {
            "SPARK_HOME": str(jars.parent),
            "JAVA_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SCALA_VERSION": "2.13",
        }
        environment.pop("SPARK_CONF_DIR", None)
        log = (self.folder / f"{name}.log").open("a")
        command = [*prefix, str(self.home / "bin" / "java"), "-Xmx256m", "-cp", f"{jars}/*", *arguments]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
        )
        self.processes.append(process)
        return process

    def start(self):
        self._java(
            "master",
            ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
        )
        log = self.folder / "master.log"

        def port():
            words = log.read_text().partition("Starting Spark master at spark://127.0.0.1:")[2].split(maxsplit=1)
            return int(words[0]) if words else 0

        self.port = wait_until(port, "the master is there", START_S)
        return f"spark://127.0.0.1:{self.port}"

    def worker(self, name):
        """Start a worker in a mount namespace of its own, in which the driver's folder is an empty one."""
        work = self.folder / name
        work.mkdir()
        script = f'mount -t tmpfs none "{self.hidden}" && exec "$@"'
        prefix = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "700m"]
        arguments += ["--work-dir", str(work), "--webui-port", "0", f"spark://127.0.0.1:{self.port}"]
        process = self._java(name, arguments, prefix)
        log = self.folder / f"{name}.log"
        wait_until(lambda: "Successfully registered with master" in log.read_text(), f"{name} is there", START_S)
        return process

    def lose(self, worker):
        """Kill a worker with its executors, and take its disk."""
        for process in [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]:
            process.send_signal(signal.SIGKILL)
        worker.wait()
        self.processes.remove(worker)

    def close(self):
        for process in reversed(self.processes):
            self.lose(process)


@pytest.fixture
def cluster(tmp_path):
    done = (
        subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True) if shutil.which("unshare") else None
    )
    if done is None or done.returncode:
        pytest.skip(f"no mount namespaces: {done.stderr.strip() if done else 'unshare is missing'}")
    (tmp_path / "data").mkdir()
    cluster = Cluster(tmp_path / "cluster", tmp_path / "data")
    yield cluster
    cluster.close()


class Driver:
    def __init__(self, data, master, checkpoints):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.log = (data.parent / "driver.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(data), master, str(checkpoints)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )

    def answer(self):
        line = self.process.stdout.readline()
        assert line, Path(self.log.name).read_text()[-3000:]
        return json.loads(line)

    def ask(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return [tuple(row) for row in self.answer()]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.log.close()


def test_state_survives_a_worker_that_is_lost_with_its_disk(cluster, tmp_path):
    (tmp_path / "shared").mkdir()
    master = cluster.start()
    first, _ = cluster.worker("first"), cluster.worker("second")
    driver = Driver(tmp_path / "data", master, tmp_path / "shared")
    try:
        assert driver.answer() in ({"partitions": "1"}, {"partitions": "2"})  # one per core that had come
        assert driver.ask("a a b c d e f g") == [("a", 2), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("f", 1), ("g", 1)]
        cluster.lose(first)
        cluster.worker("third")
        assert driver.ask("a b c d e f g") == [("a", 3), ("b", 2), ("c", 2), ("d", 2), ("e", 2), ("f", 2), ("g", 2)]
        assert (tmp_path / "shared" / "it" / "counts" / "state").is_dir()
        assert not (tmp_path / "data" / "checkpoints").exists()
    finally:
        driver.close()


def test_state_without_shared_storage_is_refused_with_the_reason(cluster, tmp_path):
    master = cluster.start()
    cluster.worker("first")
    driver = Driver(tmp_path / "data", master, "")
    try:
        driver.answer()
        assert "keeps state (an aggregate)" in (said := driver.answer()["refused"])
        assert "give `checkpoints`" in said
    finally:
        driver.close()
