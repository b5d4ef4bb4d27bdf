"""The Spark session: small, quiet, bound to loopback, with everything it writes in the data folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.settings import Settings
from millstream.spark.jars import Progress, fetch
from millstream.spark.java import java_home

DRIVER_MEMORY = "512m"
STATE_MEMORY_MB = 96  # of all RocksDB instances together, outside the Java heap
# Every micro-batch makes jobs, stages and plans; Spark keeps them for a web UI which is off. Bounded, or they fill the heap.
_REMEMBERED = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.sql.streaming.ui.retainedQueries": "10",
    "spark.sql.streaming.ui.retainedProgressUpdates": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
}
# The serial collector uses the least memory. Both compilers are on: the first alone halves a long stream's rate, though it makes
# a start cheaper (two days of the demo: 46 CPU seconds instead of 68).
_JVM = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m -Xss1m -XX:-UsePerfData"
# Settings whose value is added to ours, with what stands between them.
_ADDED = {"spark.driver.extraJavaOptions": " ", "spark.jars": ","}
_STREAMLINE = "spark.sql.streaming.useStreamlineAggregator"
_SHUFFLE = "spark.sql.shuffle.partitions"
_POOL = "spark.scheduler.pool"
_LOCAL = re.compile(r"local(?:\[(?P<threads>\d+|\*)(?P<failures>,\d+)?\])?")
_starting = threading.Lock()
EXECUTORS_S = 20.0  # how long a start waits for a cluster's executors, whose cores say how many partitions state has
MAX_PARTITIONS = 64  # of a cluster query's state, unless `[spark] sql.shuffle.partitions` says otherwise


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shuffle_partitions() -> int:
    """Return the partitions of a local query's state: one per core. A checkpoint keeps the number that it began with."""
    return max(1, min(cores(), 8))


def session(
    app: str,
    settings: Settings,
    *,
    slots: int = 0,
    connector: bool = True,
    progress: Progress | None = None,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark and return its session; there is one per process.

    slots: how many tasks run for as long as a real-time query does: on top of the cores, so that batches go on beside them.
    connector: whether to have the Kafka connector, whose jars are fetched when the cache lacks them (`progress` is called).
    more: settings of Spark's own that win over ours and the user's.
    Raises MillstreamError when there is no suitable Java or a jar is missing.
    """
    work = work_folder(settings.data)
    local = is_local(settings.spark)
    options = _options(work, settings, slots, local)
    if connector:
        options["spark.jars"] = ",".join(str(p.absolute()) for p in fetch(settings.cache, progress))
    for key, value in settings.spark_options.items():
        options[key] = f"{options[key]}{_ADDED[key]}{value}" if key in _ADDED and key in options else value
    options |= more or {}
    python = settings.spark_options.get("spark.pyspark.python", sys.executable)
    _environment(java_home(settings.cache), work, local, python)
    # They print the traceback of what is raised anyway, and which we then say in words.
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(app)
    for key, value in options.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if _SHUFFLE not in options:
        spark.conf.set(_SHUFFLE, str(_cluster_partitions(spark)))
    return spark


def is_local(master: str) -> bool:
    """Tell whether a master URL means Spark on this machine, in the driver's process."""
    return not master or _LOCAL.fullmatch(master) is not None


class Writer(DataStreamWriter):
    """Starts a query with the session's settings that its mode needs; Spark takes them over when a query starts.

    A real-time aggregate answers each row at once, for which Spark has an operator that emits one row per input row. In a
    micro-batch that would write every intermediate result: there each group comes once.

    Each query has a scheduler pool of its own, so that the many tasks of one do not hold up the few of another.
    """

    def __init__(self, frame: DataFrame, name: str, *, realtime: bool) -> None:
        super().__init__(frame)
        self.queryName(name)
        self._name = name
        self._session = frame.sparkSession
        self._realtime = realtime

    def start(self, *arguments: Any, **options: Any) -> StreamingQuery:
        """Start the query."""
        with _starting:  # the settings are the session's: one query starts at a time
            self._session.conf.set(_STREAMLINE, str(self._realtime).lower())
            self._session.sparkContext.setLocalProperty(_POOL, self._name)
            return super().start(*arguments, **options)


def _cluster_partitions(spark: SparkSession) -> int:
    """Return the partitions of state on a cluster: one per core of its executors, which come a moment after the session."""
    deadline = time.monotonic() + EXECUTORS_S
    context: Any = spark.sparkContext._jsc.sc()  # type: ignore[union-attr]
    while context.getExecutorMemoryStatus().size() < 2 and time.monotonic() < deadline:  # the driver is one of them
        time.sleep(0.1)
    return max(1, min(spark.sparkContext.defaultParallelism, MAX_PARTITIONS))


def _options(work: Path, settings: Settings, slots: int, local: bool) -> dict[str, str]:
    log = Path(__file__).with_name("log4j2.properties")
    options = {
        "spark.master": _local_master(settings.spark, slots) if local else settings.spark,
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f'{_JVM} "-Djava.io.tmpdir={work}" "-Dlog4j2.configurationFile={log.as_uri()}"',
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.variant.allowDuplicateKeys": "true",  # the last one counts, as from_json and msgspec have it
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": str(STATE_MEMORY_MB),
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # real-time mode refuses the first format
        _STREAMLINE: "false",  # see `Writer`
        "spark.sql.streaming.stopTimeout": "8s",
        "spark.sql.streaming.noDataProgressEventInterval": "5000",  # ms: how exactly a quiet partition's time is known
        **_REMEMBERED,
    }
    if local:
        options |= {
            "spark.local.dir": str(work),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.default.parallelism": str(cores()),
            _SHUFFLE: str(shuffle_partitions()),
        }
    if local and settings.checkpoints is None:
        # Spark's own choice starts a process, readlink, for every file that it renames. A local disk can do without.
        options["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
    return options


def _local_master(master: str, slots: int) -> str:
    """Return the master URL with `slots` threads more than it has, by default one per core."""
    said = _LOCAL.fullmatch(master)
    threads = said["threads"] if said else None
    count = 1 if said and threads is None and master else cores() if threads in (None, "*") else int(threads)
    return f"local[{count + slots}{(said['failures'] or '') if said else ''}]"


def _environment(home: Path, work: Path, local: bool, python: str) -> None:
    """Set what Spark reads from the environment. python: the interpreter of Python workers, on the machines where they run."""
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = python, sys.executable
    os.environ.pop("SPARK_HOME", None)  # another Spark on the machine is not the one whose jars are pinned
    os.environ.pop("SPARK_CONF_DIR", None)
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ["SPARK_LOCAL_DIRS"] = str(
            work
        )  # of the driver; workers have their own, as a setting would not let them


def work_folder(data: Path) -> Path:
    """Make a folder for Spark's temporary files, and remove those of processes that are gone."""
    root = data.absolute() / "spark"
    root.mkdir(parents=True, exist_ok=True)
    for left in root.iterdir():
        if left.name.isdigit() and not _alive(int(left.name)):
            shutil.rmtree(left, ignore_errors=True)
    work = root / str(os.getpid())
    work.mkdir(exist_ok=True)
    return work


def table_folder(settings: Settings) -> Path:
    """Return the folder for the files of tables' local copies, which every worker has to reach."""
    if settings.checkpoints is None:
        return work_folder(settings.data) / "tables"
    return settings.checkpoints / ".tables" / f"{socket.gethostname()}-{os.getpid()}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def local_slots(realtime: Sequence[int]) -> int:
    """Return the task slots that real-time queries need, given the source partitions of each.

    A real-time query holds one task per source partition and, when it groups or deduplicates, one per shuffle partition.
    """
    return sum(partitions + shuffle_partitions() for partitions in realtime)
