"""Rows `start`, `memory` and `growth`: what a broker costs when nothing happens, and when its log is long."""

from __future__ import annotations

import shutil
import signal
import time

from confluent_kafka import Consumer, TopicPartition
from versus.bench import Bench
from versus.brokers import Side, Watch, in_turn

SETTLED_S = 3.0  # between a start and the look at its memory
IDLE_S = 3.0
LOAD = 400_000
GIGABYTE = 10**9
LARGEST = 20
"""GB of the log at size 1."""
ROOM = 10
"""GB of the disk that are left alone."""
STEP = 1_000_000  # records of 1 KiB


def start(bench: Bench) -> None:
    """Start in an empty folder, and once more; memory and CPU of a broker that nobody uses."""
    for repeat in range(bench.repeats):
        for side in in_turn(bench.fresh(f"start-{repeat}"), repeat):
            try:
                _start(bench, side)
            finally:
                side.stop()
                shutil.rmtree(side.folder)


def _start(bench: Bench, side: Side) -> None:
    seconds = side.start()
    bench.add("start", "first, empty folder", side, {"seconds": seconds, "CPU seconds": side.cpu()})
    time.sleep(SETTLED_S)
    memory, before = side.memory(), side.cpu()
    time.sleep(IDLE_S)
    idle = (side.cpu() - before) / IDLE_S * 1000
    bench.add("memory", "idle", side, {"RSS MB": memory.rss, "PSS MB": memory.pss, "CPU ms/s": idle})
    side.stop()
    seconds = side.start()
    bench.add("start", "again, same folder", side, {"seconds": seconds, "CPU seconds": side.cpu()})


def memory(bench: Bench) -> None:
    """The most memory while the base cases of produce and consume run, with 1 and 10 clients."""
    records = max(2_000, int(LOAD * bench.size))
    for clients in (1, 10):
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                with side.topic(bench.name("memory")) as topic, Watch(side) as watch:
                    bench.librdkafka.produce(side, topic, records, 1024, {}, clients=clients)
                    bench.librdkafka.consume(side, topic, records // clients, {}, clients=clients)
                case = f"most under load, {clients} client{'s' if clients > 1 else ''}"
                bench.add("memory", case, side, {"RSS MB": watch.most.rss, "PSS MB": watch.most.pss})


def growth(bench: Bench) -> None:
    """One topic of each grows; its rate at the beginning, in the middle and at the end; restarts in the middle.

    Both logs are on the disk at the same time. SystemExit when there is no room for them.
    """
    largest = max(1, round(LARGEST * bench.size))
    middle = max(1, largest // 2)
    free = shutil.disk_usage(bench.folder).free // GIGABYTE
    if free < 2.2 * largest + ROOM:
        raise SystemExit(
            f"growth: two logs of {largest} GB need {2.2 * largest + ROOM:.0f} GB, {free} are free in {bench.folder}; "
            "choose another --folder or a smaller --size"
        )
    sides = bench.fresh("growth")
    try:
        for side in sides:
            side.start()
            side.create("growth")
        step = STEP if bench.size >= 0.5 else STEP // 2
        sent = 0
        rates: dict[Side, list[dict[str, float]]] = {side: [] for side in sides}
        restarted = False
        while sent * 1024 < largest * GIGABYTE:
            for side in in_turn(sides, sent // step):
                before = side.cpu()
                ran = bench.librdkafka.produce(side, "growth", step, 1024, {})
                amount = ran.records * 1024 / 1e6
                cost = (side.cpu() - before) * 1000 / amount
                rates[side].append({"MB/s": amount * ran.rate / ran.records, "CPU ms/MB": cost})
            sent += step
            if sent * 1024 >= middle * GIGABYTE and not restarted:
                restarted = True
                for side in sides:
                    _restart(bench, side, sent, sent * 1024 / GIGABYTE)
        steps = len(rates[sides[0]])
        for side in sides:
            for number in range(steps):
                # A quarter of all steps each: single ones say little on a disk that is written to behind one's back.
                quarter = number * 4 // steps
                low, high = largest * quarter / 4, largest * (quarter + 1) / 4
                bench.found.add("growth", f"librdkafka, 1 KiB, {low:g} to {high:g} GB", side.name, rates[side][number])
    finally:
        for side in sides:
            side.stop(signal.SIGKILL)
            shutil.rmtree(side.folder)


def _restart(bench: Bench, side: Side, records: int, size: float) -> None:
    """Stop and start, then kill and start; all records are still there."""
    for case, how in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        for _ in range(bench.repeats):
            side.stop(how)
            seconds = side.start("growth")
            bench.add("restart", f"{size:.0f} GB of log, {case}", side, {"seconds": seconds, "CPU seconds": side.cpu()})
            reader = Consumer({"bootstrap.servers": side.address, "group.id": "bench"})
            _, end = reader.get_watermark_offsets(TopicPartition("growth", 0), timeout=30)
            reader.close()
            if end != records:
                raise SystemExit(f"restart: {side.name}, {case}: the log ends at {end}, {records} were acknowledged")
