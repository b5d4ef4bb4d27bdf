"""What a capture costs: rows and changes per CPU second of its process: `python bench/capture.py [--tree FOLDER ...]`.

One embedded PostgreSQL, one embedded broker, a table of six columns and some 156 bytes a row. The capture runs in a process of
its own; what counts is that process's CPU time (user and system). With `--tree`, a folder with another state of the source, made
with `git archive COMMIT | tar -x -C FOLDER`, the states take turns, this one first; the table shows the median of each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server

HERE = Path(__file__).resolve().parent.parent
# For the source as it is now, and as it was when the first version of this file was written to compare with.
CHILD = """
import json, signal, sys, threading
from functools import partial
from pathlib import Path
from millstream import capture
from millstream.settings import Kafka
facts = json.loads(sys.argv[1])
try:
    from millstream.app.inputs import Table
    from millstream.app.sources import PostgresTable
    from millstream.capture.postgres.source import opened
    source = partial(opened, facts["app"], "bench", facts["conninfo"])
except ImportError:
    from millstream.capture.table import PostgresTable, Table
    source = facts["conninfo"]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
tables = [Table(facts["topic"], PostgresTable("bench", "t", "public"))]
capture.run(facts["app"], "bench", source, tables, Kafka(facts["kafka"]), state=Path(facts["state"]),
            ready=lambda more: print("ready", flush=True), stop=stop)
"""


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """Return the most memory that a process had, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def confirmed(sql: psycopg.Connection, app: str) -> int:
    """Return how far the capture's slot is."""
    query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name LIKE %s"
    row = sql.execute(query, [f"millstream_{app}_%"]).fetchone()
    return int(row[0]) if row and row[0] else 0


def run(tree: Path, app: str, conninfo: str, kafka: str, folder: Path, rows: int, changes: int) -> dict[str, float]:
    """Capture the table from the start, and changes of it; return the figures."""
    folder.mkdir()
    facts = {"app": app, "topic": f"{app}.t", "conninfo": conninfo, "kafka": kafka, "state": str(folder)}
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(facts)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        with connect(conninfo, autocommit=True) as sql:
            assert child.stdout is not None
            began = time.monotonic()
            assert child.stdout.readline().startswith("ready"), "the capture ended"
            copied, wall = cpu(child.pid), time.monotonic() - began
            began = time.monotonic()
            for number in range(max(1, changes // rows)):
                sql.execute("UPDATE t SET n = %s", [number])
            sql.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
            row = sql.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
            assert row is not None
            while confirmed(sql, app) < int(row[0]):
                time.sleep(0.05)
            used = cpu(child.pid) - copied
            return {
                "rows per CPU s": rows / copied,
                "rows per s": rows / wall,
                "changes per CPU s": changes / used,
                "changes per s": changes / (time.monotonic() - began),
                "peak MB": peak(child.pid),
            }
    finally:
        child.terminate()
        child.wait(30)
        with connect(conninfo, autocommit=True) as sql:
            sql.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND slot_name LIKE %s",
                [f"millstream_{app}_%"],
            )


def main() -> None:
    """Take the measures and print the table."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--tree", type=Path, action="append", default=[], help="another state of the source")
    given.add_argument("--rows", type=int, default=100_000)
    given.add_argument("--changes", type=int, default=200_000)
    given.add_argument("--repeats", type=int, default=3)
    options = given.parse_args()
    trees = [HERE, *options.tree]
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    with tempfile.TemporaryDirectory() as name, Server(Path(name) / "postgres") as server:
        broker = subprocess.Popen(
            [sys.executable, "-m", "millstream.broker", "--data", f"{name}/log", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert broker.stdout is not None
            kafka = json.loads(broker.stdout.readline().partition(" ")[2])["kafka"]
            for repeat in range(options.repeats):
                for place, tree in enumerate(trees):
                    app = f"bench{repeat}x{place}"
                    conninfo = server.database(app)
                    with connect(conninfo, autocommit=True) as sql:
                        sql.execute(
                            "CREATE TABLE t (id bigint PRIMARY KEY, n int, a text, b text, at timestamptz, price numeric(12, 2))"
                        )
                        sql.execute(
                            "INSERT INTO t SELECT i, 0, md5(i::text), md5(i::text) || md5((i + 1)::text), now(), i * 1.25"
                            " FROM generate_series(1, %s) i",
                            [options.rows],
                        )
                    figures = run(tree, app, conninfo, kafka, Path(name) / app, options.rows, options.changes)
                    found[tree].append(figures)
        finally:
            broker.terminate()
            broker.wait(30)
    measures = list(found[HERE][0])
    print("| state | " + " | ".join(measures) + " |")
    print("| --- |" + " --- |" * len(measures))
    for tree, runs in found.items():
        medians = [statistics.median(run[name] for run in runs) for name in measures]
        print(f"| {'this' if tree == HERE else tree.name} | " + " | ".join(f"{m:,.0f}" for m in medians) + " |")


if __name__ == "__main__":
    main()
