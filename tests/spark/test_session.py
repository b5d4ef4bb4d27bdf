"""The session as a process: it leaves nothing behind, and ends with the Python that started it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from millstream.settings import Settings
from millstream.spark.session import Writer, _local_master, _options, cores, is_local, table_folder
from tests.brokers import wait_until
from tests.spark.streams import Memory

DRIVER = """
import sys
from pathlib import Path
from millstream.spark.session import session
from millstream.settings import Settings
spark = session("it", Settings(data=Path(sys.argv[1]), cache=Path(sys.argv[2])), slots=3, connector=False)
spark.range(10).repartition(2).write.format("noop").mode("overwrite").save()
print(spark.sparkContext.defaultParallelism, spark.sparkContext.master, spark.conf.get("spark.driver.host"), flush=True)
sys.stdin.read()
"""


@pytest.mark.system
@pytest.mark.parametrize("how", [signal.SIGKILL, None])
@pytest.mark.parametrize("java", ["", "bundled"])
def test_the_jvm_ends_with_its_driver_and_nothing_is_left_in_the_working_folder(tmp_path, how, java):
    data, work = tmp_path / "with space" / "data", tmp_path / "work"
    work.mkdir()
    environment = os.environ | ({"MILLSTREAM_JAVA": java} if java else {})
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(data), str(Settings.load().cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=work,
        env=environment,
    )
    assert driver.stdin is not None and driver.stdout is not None
    parallelism, master, host = driver.stdout.readline().decode().split()
    cores = len(os.sched_getaffinity(0))
    assert (int(parallelism), master, host) == (cores, f"local[{cores + 3}]", "127.0.0.1")
    [jvm] = psutil.Process(driver.pid).children()
    assert "java" in jvm.name()
    listening = {c.laddr.ip for c in jvm.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    if how:
        driver.send_signal(how)
    else:
        driver.stdin.close()
    driver.wait(20)
    wait_until(lambda: not jvm.is_running(), "the JVM ends", 10)
    assert list(work.iterdir()) == []
    assert [p.name for p in data.iterdir()] == ["spark"]


def test_folders_of_dead_processes_are_removed(tmp_path):
    from millstream.spark.session import work_folder

    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    left = tmp_path / "spark" / str(dead.pid)
    left.mkdir(parents=True)
    (left / "librocksdb.so").write_bytes(b"")
    assert work_folder(tmp_path) == tmp_path / "spark" / str(os.getpid())
    assert [p.name for p in (tmp_path / "spark").iterdir()] == [str(os.getpid())]
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize(
    ("master", "slots", "expected"),
    [
        ("", 3, f"local[{cores() + 3}]"),
        ("local", 0, "local[1]"),
        ("local[*]", 1, f"local[{cores() + 1}]"),
        ("local[4]", 2, "local[6]"),
        ("local[4,3]", 2, "local[6,3]"),
    ],
)
def test_real_time_queries_have_their_slots_beside_the_threads_that_were_asked_for(master, slots, expected):
    assert is_local(master)
    assert _local_master(master, slots) == expected


@pytest.mark.parametrize("master", ["spark://cluster:7077", "yarn", "k8s://https://x", "local-cluster[2,1,1024]"])
def test_a_cluster_is_not_this_machine(master):
    assert not is_local(master)


def test_both_compilers_run():
    options = _options(Path("/w"), Settings(), 0, True)
    assert "TieredStopAtLevel" not in options["spark.driver.extraJavaOptions"]


def test_partitions_of_state_follow_the_master(tmp_path):
    assert _options(tmp_path, Settings(), 0, True)["spark.sql.shuffle.partitions"] == str(min(cores(), 8))
    remote = Settings(spark="spark://cluster:7077", checkpoints=tmp_path / "shared")
    assert "spark.sql.shuffle.partitions" not in _options(tmp_path, remote, 0, False)  # known when its executors are
    assert "spark.local.dir" not in _options(
        tmp_path, remote, 0, False
    )  # a path of the driver's, which workers may lack
    assert table_folder(remote).is_relative_to(tmp_path / "shared" / ".tables")


MORE = """
import sys
from pathlib import Path
from millstream.spark.session import session
from millstream.settings import Settings
options = {"spark.pyspark.python": sys.argv[2]}
options |= {"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "5", "spark.driver.extraJavaOptions": "-Dmine=1"}
spark = session("it", Settings(data=Path(sys.argv[1]), spark="local[1]", spark_options=options), connector=False)
java = spark._jvm.java.lang
print(spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"), java.System.getProperty("mine"))
print(spark.sparkContext.pythonExec, spark.range(1).rdd.map(lambda row: sys.argv[0]).count())
print(java.System.getProperty("java.io.tmpdir"), java.Runtime.getRuntime().maxMemory() >> 20)
"""


@pytest.mark.system
def test_settings_of_the_user_win_or_are_added_to_ours(tmp_path):
    python = tmp_path / "python"  # such as that of the workers' own environment
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", MORE, tmp_path, python], stdout=subprocess.PIPE, text=True, check=True, timeout=180
    )
    master, partitions, mine, workers, _, folder, memory = done.stdout.split()
    assert (master, partitions, mine) == ("local[1]", "5", "1")
    assert workers == str(python)
    assert folder.startswith(str(tmp_path / "spark"))
    assert 550 <= int(memory) <= 600


@pytest.mark.system
def test_a_micro_batch_aggregate_emits_one_row_per_group(spark):
    stream = Memory(spark)
    seen = []
    counts = stream.frame.groupBy("value").count()
    query = (
        Writer(counts, "counts", realtime=False)
        .outputMode("update")
        .foreachBatch(lambda batch, number: seen.extend(tuple(r) for r in batch.collect()))
        .start()
    )
    try:
        stream.add(*"aaaaab")
        query.processAllAvailable()
        assert sorted(seen) == [("a", 5), ("b", 1)]
        stream.add("a")
        query.processAllAvailable()
        assert sorted(seen) == [("a", 5), ("a", 6), ("b", 1)]
    finally:
        query.stop()


@pytest.mark.system
def test_transform_with_state_runs(spark):
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    pytest.importorskip("google.protobuf", reason="it comes with the dependencies of Spark's part")

    class Total(StatefulProcessor):
        def init(self, handle):
            self._total = handle.getValueState("total", "n long")

        def handleInputRows(self, key, rows, timerValues):
            n = (self._total.get() or (0,))[0] + sum(len(r) for r in rows)
            self._total.update((n,))
            yield pd.DataFrame({"value": [key[0]], "n": [n]})

        def close(self):
            pass

    stream = Memory(spark)
    seen = []
    totals = stream.frame.groupBy("value").transformWithStateInPandas(Total(), "value string, n long", "update", "none")
    query = (
        Writer(totals, "totals", realtime=False)
        .outputMode("update")
        .foreachBatch(lambda batch, number: seen.extend(tuple(r) for r in batch.collect()))
        .start()
    )
    try:
        stream.add("a", "a", "b")
        query.processAllAvailable()
        stream.add("a")
        query.processAllAvailable()
        assert sorted(seen) == [("a", 2), ("a", 3), ("b", 1)]
    finally:
        query.stop()


@pytest.mark.system
def test_a_heavy_batch_does_not_hold_up_another_query(spark):
    heavy, light = Memory(spark), Memory(spark)
    begun, ended = threading.Event(), threading.Event()

    def work(batch, number):
        begun.set()
        tasks = spark.range(0, 100, 1, 100).selectExpr("reflect('java.lang.Thread', 'sleep', 200L + 0 * id)")
        tasks.write.format("noop").mode("overwrite").save()
        ended.set()

    queries = [
        Writer(heavy.frame, "heavy", realtime=False).foreachBatch(work).start(),
        Writer(light.frame, "light", realtime=False).foreachBatch(lambda batch, number: batch.collect()).start(),
    ]
    try:
        heavy.add("a")
        assert begun.wait(60)
        for _ in range(3):
            light.add("b")
            queries[1].processAllAvailable()
        assert not ended.is_set()
        queries[0].processAllAvailable()
        assert ended.is_set()
    finally:
        for query in queries:
            query.stop()
