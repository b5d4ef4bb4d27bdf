"""Running clients as processes of their own: Apache Kafka's Java tools, and ours over librdkafka."""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from versus.brokers import Side

from millstream.settings import Settings
from millstream.spark import jars, java
from tests.apache_kafka import pinned

HERE = Path(__file__).parent
PATIENCE_S = 180.0
JVM = ("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC")
PAYLOADS = 1000  # different values that records are made of
_PRODUCED = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.M)
_STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec .*", re.M)
_LATENCY = re.compile(r"([\d.]+) ms 50th, [\d.]+ ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th")
WARM_UP = 0.25
"""Share of a Java producer's records that come before those that count for its rate: its code is compiled meanwhile."""


@dataclass(frozen=True)
class Ran:
    """What a client did: records, the rate by its own clock, its CPU seconds, percentiles in milliseconds."""

    records: int
    rate: float
    cpu: float
    latency: Mapping[str, float] = field(default_factory=dict)


def payloads(size: int, spread: int = 0) -> list[str]:
    """Values of `size` characters of JSON, `spread` more or less: a few fields, some of them repeating, some not."""
    source = random.Random(size)
    made = []
    for _ in range(PAYLOADS):
        text = ""
        length = size + source.randint(-spread, spread)
        while len(text) < length:
            text += json.dumps(
                {
                    "carrier": source.choice(["UA", "AA", "B6", "DL", "EV", "MQ"]),
                    "flight": source.randrange(6000),
                    "origin": source.choice(["EWR", "JFK", "LGA"]),
                    "tailnum": f"N{source.randrange(100_000)}",
                    "scheduled_at": f"2013-{source.randrange(1, 13):02}-{source.randrange(1, 29):02}T05:15:00+00:00",
                    "delay": round(source.uniform(-20, 400), 1),
                }
            )
        made.append(text[:length])
    return made


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from the first begin to the last end: clients at the same time each have their own."""
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


class Java:
    """Apache Kafka's performance tools."""

    name = "Java"

    def __init__(self, folder: Path) -> None:
        cache = Settings.load().cache
        found = jars.fetch(cache, jars=pinned(HERE / "java.txt"))
        path = ":".join(str(each) for each in found)
        self._run = [str(java.java_home(cache) / "bin" / "java"), *JVM, "-cp", path]
        self._folder = folder

    def produce(
        self,
        side: Side,
        topic: str,
        records: int,
        size: int,
        config: Mapping[str, str],
        clients: int = 1,
        rate: int = -1,
        spread: int = 0,
    ) -> Ran:
        """ProducerPerformance: `records` in all."""
        values = self._folder / f"payloads-{size}-{spread}.txt"
        if not values.exists():
            values.write_text("\n".join(payloads(size, spread)))
        share = records // clients
        warm = int(share * WARM_UP)
        command = ["ProducerPerformance", "--topic", topic, "--num-records", str(share), "--payload-file", str(values)]
        command += ["--throughput", str(rate), "--bootstrap-server", side.address, "--warmup-records", str(warm)]
        command += [word for name, value in config.items() for word in ("--command-property", f"{name}={value}")]
        cpu = used()
        outputs = self._all([command] * clients)
        if clients == 1:
            found = _STEADY.search(outputs[0].text)
            assert found, f"no summary in {outputs[0].text}"
            shown = _LATENCY.search(found[0])
            assert shown
            latency = dict(zip(("p50", "p99", "p99.9"), map(float, shown.groups()), strict=True))
            return Ran(share, float(found[2]), used() - cpu, latency)
        spans = []
        for output in outputs:
            summary = _PRODUCED.findall(output.text)[-1]
            spans.append((output.end - int(summary[0]) / float(summary[1]), output.end))
        return Ran(share * clients, share * clients / covered(spans), used() - cpu)

    def consume(
        self, side: Side, topic: str, records: int, config: Mapping[str, str], clients: int = 1, **_: Any
    ) -> Ran:
        """ConsumerPerformance: each client reads the first `records` of the topic, in a group of its own."""
        command = ["ConsumerPerformance", "--topic", topic, "--num-records", str(records), "--hide-header"]
        command += ["--timeout", str(int(PATIENCE_S * 1000))]
        command += ["--bootstrap-server", side.address]
        command += [word for name, value in config.items() for word in ("--command-property", f"{name}={value}")]
        cpu = used()
        outputs = self._all([command] * clients)
        spans = []
        total = 0
        for output in outputs:
            fields = output.text.strip().splitlines()[-1].split(", ")
            count, fetching = int(fields[4]), int(fields[7]) / 1000
            if count < records:
                raise RuntimeError(f"{side.name}: {count} of {records} records came")
            spans.append((output.end - fetching, output.end))
            total += count
            if clients == 1:
                return Ran(count, count / fetching, used() - cpu)
        return Ran(total, total / covered(spans), used() - cpu)

    def _all(self, commands: Sequence[Sequence[str]]) -> list[Output]:
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(self._one, commands))

    def _one(self, command: Sequence[str]) -> Output:
        return run([*self._run, f"org.apache.kafka.tools.{command[0]}", *command[1:]])


class Librdkafka:
    """Producers and consumers over librdkafka, as threads of one process."""

    name = "librdkafka"

    def produce(
        self,
        side: Side,
        topic: str,
        records: int,
        size: int,
        config: Mapping[str, str],
        clients: int = 1,
        spread: int = 0,
    ) -> Ran:
        """Send `records` in all."""
        job = {"records": records, "payloads": payloads(size, spread), "config": dict(config), "clients": clients}
        return self._do("produce", side, topic, **job)

    def consume(
        self, side: Side, topic: str, records: int, config: Mapping[str, str], clients: int = 1, partitions: int = 1
    ) -> Ran:
        """Each client reads the first `records` of the topic."""
        job = {"records": records, "config": dict(config), "clients": clients, "partitions": partitions}
        return self._do("consume", side, topic, **job)

    def latency(self, side: Side, topic: str, rate: int, seconds: float, size: int, config: Mapping[str, str]) -> Ran:
        """End-to-end latency at a rate."""
        job = {"rate": rate, "seconds": seconds, "warm_up": 2.0, "size": size, "config": dict(config)}
        return self._do("latency", side, topic, **job)

    def one_by_one(self, side: Side, topic: str, clients: int, seconds: float, size: int) -> Ran:
        """One record under way per client."""
        return self._do("one_by_one", side, topic, clients=clients, seconds=seconds, size=size)

    def _do(self, what: str, side: Side, topic: str, **job: Any) -> Ran:
        cpu = used()
        output = run(
            [sys.executable, str(HERE / "rdkafka.py")],
            json.dumps({"do": what, "address": side.address, "topic": topic, **job}),
        )
        cpu = used() - cpu
        answer = json.loads(output.text.splitlines()[-1])
        took = answer["end"] - answer["begin"] if "end" in answer else 0.0
        latency = {name: value * 1000 for name, value in answer.items() if name.startswith("p")}
        records = int(answer["records"])
        return Ran(records, records / took if took else 0.0, cpu, latency)


@dataclass(frozen=True)
class Output:
    """What a process printed, and when it ended."""

    text: str
    end: float


def used() -> float:
    """CPU seconds of all children that have ended, which the brokers have not."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command: Sequence[str], stdin: str = "") -> Output:
    """Run a client to its end. RuntimeError when it fails."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        text, errors = process.communicate(stdin, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError(f"a client was not done after {PATIENCE_S:.0f} s: {' '.join(command)[-400:]}") from None
    end = time.time()
    if process.returncode:
        raise RuntimeError(f"a client failed: {' '.join(command)[-400:]}\n{text[-2000:]}\n{errors[-2000:]}")
    return Output(text, end)
