"""A real Apache Kafka, on one node, for tests and benchmarks that compare with it or run on it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from millstream.settings import Kafka, Settings
from millstream.spark import jars, java

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


# For tests, which want it small.
JVM = ("-Xmx512m", "-XX:+UseSerialGC")


class ApacheKafka:
    """A broker with its data in `folder`, an existing empty one; it keeps its port when it is started again.

    more: broker settings. jvm: options of its Java.
    """

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None, jvm: Sequence[str] = JVM) -> None:
        classpath = ":".join(map(str, fetched()))
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self._run = [str(java.java_home(Settings.load().cache) / "bin" / "java"), *jvm, "-cp", classpath]
        self._properties = folder / "server.properties"
        port, controller = free_port(), free_port()
        self.port, self.address = port, f"127.0.0.1:{port}"
        self._properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
        with self._properties.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in (more or {}).items())
        tool = [*self._run, "kafka.tools.StorageTool"]
        identity = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True).stdout.split()[-1]
        format_ = [*tool, "format", "-t", identity, "-c", str(self._properties)]
        subprocess.run(format_, check=True, capture_output=True)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it without waiting until it answers."""
        with (self.folder / "kafka.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._run, "kafka.Kafka", str(self._properties)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        return self.process

    def start(self) -> None:
        """Start it and wait until somebody listens on its port."""
        process = self.launch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self.port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Apache Kafka did not start:\n{(self.folder / 'kafka.log').read_text()[-3000:]}")
            time.sleep(0.2)

    def end(self) -> None:
        """Stop it as an operator does, if it runs."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@contextmanager
def apache_kafka(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Kafka]:
    """Run Apache Kafka with its data in `folder`, an existing empty one, and yield its address. more: broker settings."""
    broker = ApacheKafka(folder, more)
    try:
        broker.start()
        yield Kafka(broker.address)
    finally:
        broker.end()


def pinned(path: Path) -> tuple[jars.Jar, ...]:
    """The jars that a list names: SHA-256 and Maven coordinates a line."""
    found = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            sha256, coordinates = line.split()
            found.append(jars.Jar(*coordinates.split(":"), sha256))
    return tuple(found)


def fetched(*more: Path) -> list[Path]:
    """The jars that further lists name, then those of Kafka's broker; downloaded where the cache lacks them."""
    lists = (*more, Path(__file__).with_suffix(".txt"))
    return jars.fetch(Settings.load().cache, jars=tuple(jar for path in lists for jar in pinned(path)))


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
