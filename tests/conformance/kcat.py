"""Round trips through kcat, a client of many years' standing on librdkafka 2.0: keys, codecs, times, groups, transactions."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time

from tests.proof.part import Results, Run, Skip

CODECS = ("gzip", "snappy", "lz4", "zstd")
BIG = 600_000
TIMEOUT_S = 30.0


def run(run: Run) -> Results:
    """All of them, as often as the size says."""
    kcat = installed(run)
    results = Results()
    with run.broker(results) as broker:
        for turn in range(run.size):
            Trips(kcat, broker.address, f"kcat-{turn}", run).all(results)
    return results


def installed(run: Run) -> str:
    """The program, installed as a package of the system if need be."""
    if found := shutil.which("kcat") or shutil.which("kafkacat"):
        return found
    if shutil.which("apt-get") and os.getuid() == 0:
        run.command(["apt-get", "update", "-qq"], 300)
        run.command(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "kcat"], 300)
    if found := shutil.which("kcat"):
        return found
    raise Skip("kcat is not installed: apt-get install kcat")


class Trips:
    """The round trips over topics of their own."""

    def __init__(self, kcat: str, address: str, topic: str, run: Run) -> None:
        self.kcat, self.address, self.topic, self.run = kcat, address, topic, run

    def ask(self, *words: str, stdin: str = "") -> str:
        """What kcat prints."""
        command = [self.kcat, "-b", self.address, "-X", "topic.metadata.refresh.interval.ms=200", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)
        self.run.say(f"$ {' '.join(command)}\n{done.stdout[:2000]}\n{done.stderr}")
        return done.stdout

    def produce(self, topic: str, lines: str, *words: str) -> None:
        """Write lines to partition 0."""
        self.ask("-P", "-t", topic, "-p", "0", *words, stdin=lines)

    def read(self, topic: str, *words: str, start: str = "beginning") -> str:
        """Partition 0 from a start to its end."""
        return self.ask("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", *words)

    def all(self, results: Results) -> None:
        """Every round trip."""
        topic = self.topic

        def same(name: str, wanted: object, got: object) -> None:
            results.check(f"{topic} {name}", wanted == got, f"wanted {str(wanted)[:200]!r}, got {str(got)[:200]!r}")

        started = int(time.time() * 1000)
        self.produce(topic, "a:1\nb:2\na:\nc:4\n", "-K:", "-Z", "-H", "h=v", "-X", "enable.idempotence=true")
        shown = self.read(topic, "-Z", "-f", "%k %s %h|")
        same("keys, headers, tombstone", "a 1 h=v|b 2 h=v|a NULL h=v|c 4 h=v|", shown)
        lines = "".join(f"{i}\n" for i in range(1, 501))
        for codec in CODECS:
            self.produce(f"{topic}-{codec}", lines, "-z", codec)
            got = self.read(f"{topic}-{codec}")
            same(f"codec {codec}", hashlib.md5(lines.encode()).hexdigest(), hashlib.md5(got.encode()).hexdigest())
        same("the last record", "4\n", self.read(topic, start="-1"))
        same("offset by time", f"{topic} [0] offset 0\n", self.ask("-Q", "-t", f"{topic}:0:{started}"))
        group = self.ask("-G", f"{topic}-group", "-X", "auto.offset.reset=earliest", "-c", "4", "-q", topic)
        same("group", 4, len(group.splitlines()))
        described = json.loads(self.ask("-L", "-J", "-t", topic))
        same("metadata", [topic, True], [described["topics"][0]["topic"], len(described["brokers"]) >= 1])
        self.produce(f"{topic}-big", "x" * BIG)
        same("a record of 600 kB", str(BIG), self.read(f"{topic}-big", "-f", "%S"))
        self.produce(f"{topic}-tx", "t1\nt2\n", "-X", f"transactional.id={topic}")
        same("transactional producer", "t1\nt2\n", self.read(f"{topic}-tx", "-X", "isolation.level=read_committed"))
