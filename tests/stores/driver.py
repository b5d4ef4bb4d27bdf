"""A driver that may be killed: batches of a query into topics as Spark brings them, with Spark's two files per batch.

    python -m tests.stores.driver ADDRESS APP FOLDER BATCHES [KILLS]

Batch n holds the inputs [n * SIZE, (n + 1) * SIZE) and a random word, so a batch that is repeated never has the same rows. With
KILLS, drivers are forked and killed after a random time, that many times; the last one finishes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from millstream.settings import Kafka
from millstream.stores.topics import Topics

SIZE = 40
QUERY_ID = "00000000-0000-0000-0000-000000000001"


def drive(address: str, app: str, folder: Path, batches: int) -> None:
    """Continue where the files say: repeat the batch that was planned and is not done, then the next ones."""
    topics = Topics(Kafka(address), app, "numbers")
    done = len(list(folder.glob("done-*")))
    for number in range(done, batches):
        (folder / f"planned-{number}").touch()
        topics.apply(
            outputs(number),
            query_id=QUERY_ID,
            batch_id=number,
            positions={("input", 0): (number + 1) * SIZE, ("input", 1): 0},
        )
        (folder / f"done-{number}").touch()
    topics.close()


def outputs(number: int) -> dict[str, pa.Table]:
    """A batch for two topics."""
    word = random.randbytes(8).hex()
    inputs = range(number * SIZE, (number + 1) * SIZE)
    rows = pa.table(
        {
            "key": pa.array([str(i).encode() for i in inputs], pa.binary()),
            "value": pa.array([f"{i} {number} {word}".encode() for i in inputs], pa.binary()),
        }
    )
    return {"numbers": rows, "totals": rows.slice(0, 1)}


def torture(address: str, app: str, folder: Path, batches: int, kills: int) -> None:
    """Fork drivers and kill them. No client exists in this process, so a fork is whole."""
    killed = 0
    while killed < kills:
        child = os.fork()
        if not child:
            drive(address, app, folder, sys.maxsize)
            os._exit(0)
        time.sleep(random.uniform(0.01, 0.25))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    done = len(list(folder.glob("done-*")))
    drive(address, app, folder, max(batches, done + 2))
    print(len(list(folder.glob("done-*"))))


if __name__ == "__main__":
    where, name, kept, count, *more = sys.argv[1:]
    if more:
        torture(where, name, Path(kept), int(count), int(more[0]))
    else:
        drive(where, name, Path(kept), int(count))
