"""A real Apache Kafka, on one node, for the tests that compare with it or run on it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millstream.process import jars, java
from millstream.settings import Kafka, Settings

START_TIMEOUT_S = 60.0

PROPERTIES = """\
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def apache_kafka(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Kafka]:
    """Run Apache Kafka with its data in `folder`, an existing empty one, and yield its address. more: broker settings."""
    cache = Settings.load().cache
    classpath = ":".join(map(str, fetched()))
    run = [str(java.java_home(cache) / "bin" / "java"), "-Xmx512m", "-XX:+UseSerialGC", "-cp", classpath]
    port, controller = free_port(), free_port()
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    with properties.open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in (more or {}).items())
    tool = [*run, "kafka.tools.StorageTool"]
    identity = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout.split()[-1]
    subprocess.run([*tool, "format", "-t", identity, "-c", str(properties)], check=True, capture_output=True)
    with (folder / "kafka.log").open("wb") as log:
        process = subprocess.Popen(
            [*run, "kafka.Kafka", str(properties)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache Kafka did not start:\n{(folder / 'kafka.log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield Kafka(f"127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def fetched(*more: Path) -> list[Path]:
    """The jars that lists of the same form name, then those of Kafka's broker; fetched when the cache lacks them."""
    wanted = []
    for file in (*more, Path(__file__).with_suffix(".txt")):
        for line in file.read_text().splitlines():
            if not line.startswith("#"):
                sha256, coordinates = line.split()
                wanted.append(jars.Jar(*coordinates.split(":"), sha256))
    return jars.fetch(Settings.load().cache, jars=tuple(wanted))


def free_port() -> int:
    """Return a port of the loopback address that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Tell whether somebody listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
