"""Row `compaction`: time and CPU from the moment a topic becomes a compacted one until its old messages are gone."""

from __future__ import annotations

import json
import time

from confluent_kafka import KafkaError, Message, Producer
from versus.bench import Bench
from versus.brokers import Side

KEYS = 250_000
ROUNDS = 4  # messages of each key
VALUE = 100
SEGMENTS = 10
LEAST_SEGMENT = 1024 * 1024
"""What Kafka allows."""
QUIET_S = 4.0
"""Nothing changes for so long: it is done. Both brokers look for work every second or more often."""
PATIENCE_S = 90.0


def compaction(bench: Bench) -> None:
    """Every key is written several times, in the same order each time."""
    keys = max(10_000, int(KEYS * bench.size))
    case = f"{keys:,} keys, {ROUNDS} messages each"

    def run(side: Side) -> None:
        bench.add("compaction", case, side, _compacted(bench, side, keys))

    bench.each("compaction", case, run, lambda side: _compacted(bench, side, keys // 4))


def _compacted(bench: Bench, side: Side, keys: int) -> dict[str, float]:
    # The last segment is left alone by both: it must be a small part also when there is little to compact.
    segment = max(LEAST_SEGMENT, keys * ROUNDS * VALUE // SEGMENTS)
    with side.topic(bench.name("compaction"), config={"segment.bytes": str(segment)}) as topic:
        _fill(side, topic, keys)
        before, cpu = size(side, topic), side.cpu()
        began = time.perf_counter()
        side.configure(topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
        changed, seconds, used = before, 0.0, 0.0
        while (now := time.perf_counter()) - began < PATIENCE_S:
            found = size(side, topic)
            if found != changed:
                changed, seconds, used = found, now - began, side.cpu() - cpu
            elif changed < before and now - began - seconds > QUIET_S:
                break
            time.sleep(0.05)
        if changed == before:
            raise RuntimeError(f"not compacted within {PATIENCE_S:.0f} s")
    return {"seconds": seconds, "CPU seconds": used, "MB before": before / 1e6, "MB left": changed / 1e6}


def _fill(side: Side, topic: str, keys: int) -> None:
    failed: list[str] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    config = {"log_level": 0, "batch.size": 16384, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": side.address, **config})
    for number in range(ROUNDS):
        value = json.dumps({"round": number, "text": "x" * VALUE}).encode()[:VALUE]
        for first in range(0, keys, 1000):
            messages = [{"key": b"key-%08d" % key, "value": value} for key in range(first, min(first + 1000, keys))]
            while messages:
                producer.produce_batch(topic, messages, partition=0, on_delivery=acknowledged)
                messages = [{"key": m["key"], "value": m["value"]} for m in messages if "_error" in m]
                producer.poll(0.01 if messages else 0)
    if producer.flush(60) or failed:
        raise RuntimeError(f"the topic could not be filled: {failed[:1]}")


def size(side: Side, topic: str) -> int:
    """Bytes of the segments in the partition's folder, without those that are being made or were replaced."""
    total = 0
    for path in side.partition(topic).glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # gone this moment
    return total
