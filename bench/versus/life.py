"""Rows `start`, `memory` and `growth`: what a broker costs when nothing happens, and when its log is long."""

from __future__ import annotations

import shutil
import signal
import time
from functools import partial

from confluent_kafka import Consumer, TopicPartition
from versus.bench import Bench
from versus.brokers import Side, Watch, in_turn

SETTLED_S = 3.0  # between a start and the look at its memory
IDLE_S = 3.0
WAITING = "ten consumers that wait"
WAIT_S = 10.0
LOAD = 400_000
GIGABYTE = 10**9
LARGEST = 20
"""GB of the log at size 1."""
ROOM = 10
"""GB of the disk that are left alone."""
STEP = 1_000_000  # records of 1 KiB
FIRST = "first, empty folder"
TOPIC = "growth"


def start(bench: Bench) -> None:
    """Start in an empty folder, and once more; memory and CPU of a broker that nobody uses."""
    if not bench.wanted("start", FIRST):
        return
    for repeat in range(bench.rounds()):
        for side in in_turn(bench.fresh(f"start-{repeat}"), repeat):
            with bench.attempt("start", FIRST, side):
                try:
                    _start(bench, side)
                finally:
                    side.stop()
                    shutil.rmtree(side.folder)


def _start(bench: Bench, side: Side) -> None:
    seconds = side.start()
    bench.add("start", FIRST, side, {"seconds": seconds, "CPU seconds": side.cpu()})
    time.sleep(SETTLED_S)
    memory, before = side.memory(), side.cpu()
    time.sleep(IDLE_S)
    idle = (side.cpu() - before) / IDLE_S * 1000
    bench.add("memory", "idle", side, {"RSS MB": memory.rss, "PSS MB": memory.pss, "CPU ms/s": idle})
    side.stop()
    seconds = side.start()
    bench.add("start", "again, same folder", side, {"seconds": seconds, "CPU seconds": side.cpu()})


def memory(bench: Bench) -> None:
    """The most memory while the base cases of produce and consume run, with 1 and 10 clients; what consumers cost that wait."""
    records = max(2_000, int(LOAD * bench.size))
    for clients in (1, 10):
        case = f"most under load, {clients} client{'s' if clients > 1 else ''}"
        bench.each("memory", case, partial(_memory, bench, case, records, clients))
    bench.each("memory", WAITING, partial(_waiting, bench))


def _memory(bench: Bench, case: str, records: int, clients: int, side: Side) -> None:
    with side.topic(bench.name("memory")) as topic, Watch(side) as watch:
        bench.librdkafka.produce(side, topic, records, 1024, {}, clients=clients)
        bench.librdkafka.consume(side, topic, records // clients, {}, clients=clients)
    bench.add("memory", case, side, {"RSS MB": watch.most.rss, "PSS MB": watch.most.pss})


def _waiting(bench: Bench, side: Side) -> None:
    with side.topic(bench.name("waiting")) as topic:
        config = {"bootstrap.servers": side.address, "group.id": "bench", "enable.auto.commit": False}
        consumers = [Consumer(config) for _ in range(10)]
        try:
            for each in consumers:
                each.assign([TopicPartition(topic, 0, 0)])
                each.poll(0.2)
            before = side.cpu()
            time.sleep(WAIT_S)
            bench.add("memory", WAITING, side, {"CPU ms/s": (side.cpu() - before) / WAIT_S * 1000})
        finally:
            for each in consumers:
                each.close()


def growth(bench: Bench) -> None:
    """One topic of each grows; its rate at the beginning, in the middle and at the end; restarts in the middle.

    Both logs are on the disk at the same time. RuntimeError when there is no room for them.
    """
    largest = max(1, round(LARGEST * bench.size))
    if not bench.wanted("growth", "librdkafka, 1 KiB"):
        return
    free = shutil.disk_usage(bench.folder).free // GIGABYTE
    if free < 2.2 * largest + ROOM:
        raise RuntimeError(
            f"two logs of {largest} GB need {2.2 * largest + ROOM:.0f} GB, {free} are free in {bench.folder}; "
            "choose another --folder or a smaller --size"
        )
    # Those of the other rows would only take memory and processor time from these.
    bench.stop()
    sides = bench.fresh("growth")
    try:
        for side in sides:
            side.start()
            bench.warm_up(side)
            side.create(TOPIC)
        _grow(bench, sides, largest)
    finally:
        for side in sides:
            side.stop(signal.SIGKILL)
            shutil.rmtree(side.folder)


def _grow(bench: Bench, sides: list[Side], largest: int) -> None:
    step = STEP if bench.size >= 0.5 else STEP // 2
    steps = -(-largest * GIGABYTE // (step * 1024))
    for number in range(steps):
        # A quarter of all steps each: single ones say little on a disk that is written to behind one's back.
        quarter = number * 4 // steps
        case = f"librdkafka, 1 KiB, {largest * quarter / 4:g} to {largest * (quarter + 1) / 4:g} GB"
        for side in in_turn(sides, number):
            with bench.attempt("growth", case, side):
                before = side.cpu()
                ran = bench.librdkafka.produce(side, TOPIC, step, 1024, {})
                amount = ran.records * 1024 / 1e6
                cost = (side.cpu() - before) * 1000 / amount
                bench.add("growth", case, side, {"MB/s": amount * ran.rate / ran.records, "CPU ms/MB": cost})
        if number + 1 == steps // 2:
            for side in sides:
                _restart(bench, side, (number + 1) * step)
                bench.warm_up(side)


def _restart(bench: Bench, side: Side, records: int) -> None:
    """Stop and start, then kill and start; all records are still there."""
    for how, word in ((signal.SIGTERM, "stopped"), (signal.SIGKILL, "killed")):
        case = f"{records * 1024 / GIGABYTE:.0f} GB of log, {word}"
        with bench.attempt("restart", case, side):
            for _ in range(bench.rounds()):
                side.stop(how)
                seconds = side.start(TOPIC)
                bench.add("restart", case, side, {"seconds": seconds, "CPU seconds": side.cpu()})
                reader = Consumer({"bootstrap.servers": side.address, "group.id": "bench", "log_level": 0})
                _, end = reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
                reader.close()
                if end != records:
                    raise RuntimeError(f"the log ends at {end}, {records} were acknowledged")
        if not side.running:
            side.start(TOPIC)
