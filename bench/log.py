"""Our broker beside Apache Kafka 4.4 on the same machine, each a process of its own, fed and read by processes of their own.

    scripts/bench log                 or: python bench/log.py --rows produce,latency --size 0.1

A full run (size 1) takes about forty minutes and writes two logs of 20 GB; a short one (0.1) takes three minutes: it leaves
out the rows that need gigabytes (growth, restart) and all but the cases that say most. `--rows growth --size 0.1` measures them
with 2 GB. `--only` picks single cases. A case that fails is shown as failed in its row, its broker is started again if it does
not answer, and the rest goes on; every value is in a JSON file as soon as it is known, also of a run that is interrupted.

How it measures. Both brokers run all the time; each repeat runs one, then the other, with the first place changing, and the
table shows medians; a case whose runs are short is repeated up to three times as often. Before a case each broker gets requests
of its kind that do not count (about 100 MB by librdkafka, or a second of them), because a JVM compiles what it runs often. What
it costs is the CPU time of a broker's processes, user and system, before a run taken from that after it; MB are 10^6 bytes of
the records' values. On a machine of two cores broker and client share the cores, so that the rate (by the client's clock)
depends on the client as much as on the broker: the broker's CPU time per MB is then the fairest figure. `ahead` is how many
times better ours is (below 1: worse), so that it reads the same for rates, times and memory. `spread` is from the smallest to
the largest of the repeats of the first column, as a share of the median.

Not every combination is measured: there is a base case (1 KiB, one partition, acks=all, no compression, one client), and each
other case changes one thing of it. Clients are Apache Kafka's own performance tools (Java) and librdkafka, with their defaults
except where a row says otherwise: librdkafka sends batches of up to 1 MB, the Java client of 16 kB. The values are JSON-like
text. Kafka runs as its start script has it (1 GB of heap, G1), with the settings in `versus/brokers.py`.

Rows:
- produce, consume: MB/s, records/s and broker CPU per MB. Ten consumers read everything each. Librdkafka's consumers wait for
  5 ms, not the default of a second, when they have more records than were asked for. Ten Java clients are ten JVMs that start
  at once, which on few cores is most of their time: their broker's CPU says more than their rate.
- requests: one record a request and nothing else, for the CPU per request.
- latency: percentiles at 1,000 and 20,000 records/s, from the call of produce() to the receipt by a consumer (librdkafka), and to
  the acknowledgement (Java, whole milliseconds).
- commit: durability `commit` beside `flush.messages=1`, with 1 and 50 producers that wait for each acknowledgement.
- start, memory: until the first answer to a metadata request; memory and CPU of an idle broker, most memory under load, CPU while
  ten consumers wait for something to read.
- compaction: from the moment a topic becomes a compacted one until its files have stopped to shrink.
- growth, restart: rates as the log grows; in its middle the broker is stopped and killed and started again, until its metadata
  shows a leader of the topic. Every acknowledged record must be there.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.apache_kafka, which runs Apache Kafka

from versus import compaction, latency, life, throughput  # noqa: E402
from versus.bench import BRIEF, Bench  # noqa: E402

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
LARGE = {"growth"}  # rows that a short run leaves out
MINUTES = 38.0
"""The rows after `latency` and growth take ten more."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help=f"some of {','.join(ROWS)}")
    parser.add_argument(
        "--size", type=float, default=1.0, help="share of the full amounts; below 0.25 only the main cases"
    )
    parser.add_argument("--repeats", type=int, default=0, help="at least; default: 3, in a short run 1")
    parser.add_argument("--folder", help="where both brokers have their data; default: the folder for temporary files")
    parser.add_argument(
        "--only", default="", help='only cases with this text in "row: case", such as "produce: Java, gzip"'
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"after so many, no repeats; default: {MINUTES:g}"
    )
    parser.add_argument(
        "--json", type=Path, help="where every single value goes as it comes; default: a temporary file"
    )
    options = parser.parse_args()
    chosen = options.rows.split(",") if options.rows else [r for r in ROWS if options.size >= BRIEF or r not in LARGE]
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"no such rows: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    chosen.sort(key=list(ROWS).index)  # growth comes last: it stops the brokers of the others
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the brokers end, too
    folder = Path(tempfile.mkdtemp(prefix="bench-log-", dir=options.folder))
    results = options.json or folder.with_suffix(".json")
    repeats = options.repeats or (1 if options.size < BRIEF else 3)
    bench = Bench(folder, options.size, repeats, results, options.only, options.minutes)
    try:
        bench.start()
        for name in chosen:
            bench.row(name, ROWS[name])
    finally:
        try:
            bench.stop()
        finally:
            shutil.rmtree(folder)
            # Also what was measured before it was interrupted.
            print(bench.found.table())
            print(
                f"\n{time.monotonic() - began:.0f} s, size {options.size:g}, {repeats} repeats or more; every value: {results}"
            )
    if bench.found.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
