"""Clients over librdkafka (confluent-kafka), in a process of their own: `python rdkafka.py JSON` prints JSON.

The job says what to do, see the functions; the answer holds the clock at begin and end, and latencies in seconds where they are
asked for. Librdkafka's defaults apply, except where the job's `config` says otherwise.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

BATCH = 1000  # messages handed to librdkafka, or taken from it, at a time
PATIENCE_S = 60.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
Job = dict[str, Any]
Answer = dict[str, float]


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Percentiles of latencies, in seconds."""
    ordered = sorted(seconds)
    return {name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in QUANTILES.items()}


def produce(job: Job) -> Answer:
    """`clients` producers, each on a thread, send `records` in all as fast as they can; done when all are acknowledged."""
    payloads = job["payloads"]
    share = job["records"] // job["clients"]
    producers = [Producer({"bootstrap.servers": job["address"], **job["config"]}) for _ in range(job["clients"])]
    for each in producers:
        each.list_topics(job["topic"], PATIENCE_S)
    failed: list[str] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    def send(client: Producer) -> None:
        left = share
        number = 0
        while left:
            count = min(left, BATCH)
            messages = [{"value": payloads[(number + i) % len(payloads)]} for i in range(count)]
            while messages:
                client.produce_batch(job["topic"], messages, on_delivery=acknowledged)
                refused = [message for message in messages if "_error" in message]
                messages = [{"value": message["value"]} for message in refused]
                client.poll(0.01 if messages else 0)
            left -= count
            number += count
        if client.flush(PATIENCE_S):
            failed.append("not acknowledged in time")

    begin = time.time()
    on_threads([lambda client=client: send(client) for client in producers])
    end = time.time()
    if failed:
        raise SystemExit(f"{len(failed)} records failed: {failed[0]}")
    return {"begin": begin, "end": end, "records": share * job["clients"]}


def consume(job: Job) -> Answer:
    """`clients` consumers without a group, each on a thread, each reads the first `records` of the topic."""
    base = {"bootstrap.servers": job["address"], "group.id": "bench", "enable.auto.commit": False}
    consumers = [Consumer({**base, "auto.offset.reset": "earliest", **job["config"]}) for _ in range(job["clients"])]
    for each in consumers:
        each.list_topics(job["topic"], PATIENCE_S)
    failed: list[str] = []

    def read(client: Consumer) -> None:
        client.assign([TopicPartition(job["topic"], p, 0) for p in range(job["partitions"])])
        left = job["records"]
        while left > 0:
            messages = client.consume(min(left, BATCH), PATIENCE_S)
            if not messages or (error := messages[0].error()) is not None:
                failed.append(f"{left} records did not come: {error if messages else 'no answer'}")
                return
            left -= len(messages)

    begin = time.time()
    on_threads([lambda client=client: read(client) for client in consumers])
    end = time.time()
    for each in consumers:
        each.close()
    if failed:
        raise SystemExit(failed[0])
    return {"begin": begin, "end": end, "records": job["records"] * job["clients"]}


def latency(job: Job) -> Answer:
    """From the call of produce() to the record's receipt by a consumer, at `rate` records a second for `seconds`.

    The first `warm_up` seconds do not count. Each record is sent when it is due, whatever became of those before it.
    """
    rate, warm = job["rate"], int(job["warm_up"] * job["rate"])
    total = warm + int(job["seconds"] * rate)
    sent, arrived = [0.0] * total, [0.0] * total
    filler = b"x" * (job["size"] - 8)
    base = {"bootstrap.servers": job["address"]}
    consumer = Consumer({**base, "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(job["topic"], 0, 0)])
    clock = time.perf_counter
    stop = threading.Event()

    def receive() -> None:
        left = total
        while left and not stop.is_set():
            # One at a time: a call for more would wait until they are there.
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            arrived[int.from_bytes(message.value()[:8], "big")] = clock()
            left -= 1

    reader = threading.Thread(target=receive, daemon=True)
    reader.start()
    producer = Producer({**base, **job["config"]})
    producer.list_topics(job["topic"], PATIENCE_S)
    produce, poll, topic = producer.produce, producer.poll, job["topic"]
    begin = clock()
    for number in range(total):
        due = begin + number / rate
        while (now := clock()) < due:
            time.sleep(due - now)
        sent[number] = clock()
        produce(topic, number.to_bytes(8, "big") + filler, partition=0)
        if number % 100 == 0:
            poll(0)
    producer.flush(PATIENCE_S)
    reader.join(PATIENCE_S)
    stop.set()
    reader.join()
    consumer.close()
    if missing := arrived.count(0.0):
        raise SystemExit(f"{missing} of {total} records did not arrive")
    return {"records": total, **quantiles([a - s for a, s in zip(arrived[warm:], sent[warm:], strict=True)])}


def one_by_one(job: Job) -> Answer:
    """`clients` producers, each with one record under way at a time, for `seconds`: how soon a commit is acknowledged."""
    producers = [Producer({"bootstrap.servers": job["address"], "linger.ms": 0}) for _ in range(job["clients"])]
    for each in producers:
        each.list_topics(job["topic"], PATIENCE_S)
    payload = b"x" * job["size"]
    times: list[float] = []
    failed: list[str] = []
    clock = time.perf_counter
    until = clock() + job["seconds"]

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    def send(client: Producer) -> None:
        while (begin := clock()) < until and not failed:
            client.produce(job["topic"], payload, partition=0, on_delivery=acknowledged)
            if client.flush(PATIENCE_S):
                failed.append("not acknowledged in time")
            times.append(clock() - begin)

    begin = time.time()
    on_threads([lambda client=client: send(client) for client in producers])
    end = time.time()
    if failed:
        raise SystemExit(f"a record failed: {failed[0]}")
    return {"begin": begin, "end": end, "records": len(times), **quantiles(times)}


def on_threads(actions: list[Callable[[], None]]) -> None:
    """Run all at once and wait for them."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


JOBS = {"produce": produce, "consume": consume, "latency": latency, "one_by_one": one_by_one}


def main() -> None:
    """Do the job given on standard input."""
    job = json.load(sys.stdin)
    print(json.dumps(JOBS[job["do"]](job)))


if __name__ == "__main__":
    main()
