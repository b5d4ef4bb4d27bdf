"""Our broker beside Apache Kafka 4.4 on the same machine, each a process of its own, fed and read by processes of their own.

scripts/bench log                 or: python bench/log.py --rows produce,latency --size 0.1
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.apache_kafka, which runs Apache Kafka

from versus import compaction, latency, life, throughput  # noqa: E402
from versus.bench import Bench  # noqa: E402

ROWS = {
    "produce": throughput.produce,
    "consume": throughput.consume,
    "requests": throughput.requests,
    "latency": latency.latency,
    "commit": latency.commit,
    "start": life.start,
    "memory": life.memory,
    "compaction": compaction.compaction,
    "growth": life.growth,
}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument(
        "--size", type=float, default=1.0, help="share of the full amounts; below 0.25 only the main cases"
    )
    parser.add_argument("--repeats", type=int, default=0, help="default: 3, in a short run 1")
    parser.add_argument("--folder", help="where both brokers have their data; default: the folder for temporary files")
    parser.add_argument("--json", type=Path, help="write every single value to this file")
    options = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bench-log-", dir=options.folder))
    bench = Bench(folder, options.size, options.repeats or (1 if options.size < 0.25 else 3))
    try:
        bench.start()
        for name in options.rows.split(","):
            ROWS[name](bench)
    finally:
        bench.stop()
        shutil.rmtree(folder)
        if options.json:
            bench.found.save(options.json)
        print(bench.found.table())
    print(f"\n{time.monotonic() - began:.0f} s, size {options.size:g}, {bench.repeats} repeats")


if __name__ == "__main__":
    main()
