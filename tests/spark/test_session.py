"""The session as a process: it leaves nothing behind, and ends with the Python that started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millstream.settings import Settings
from tests.brokers import wait_until

pytestmark = pytest.mark.system

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
    from millstream.spark.session import _work_folder

    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    left = tmp_path / "spark" / str(dead.pid)
    left.mkdir(parents=True)
    (left / "librocksdb.so").write_bytes(b"")
    assert _work_folder(tmp_path) == tmp_path / "spark" / str(os.getpid())
    assert [p.name for p in (tmp_path / "spark").iterdir()] == [str(os.getpid())]
    assert Path.cwd() != tmp_path
