"""The two brokers under measurement, each a process of its own: started, stopped, watched, and given topics."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from versus.measure import OURS, THEIRS

from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.apache_kafka import ApacheKafka, free_port

PATIENCE_S = 120.0
DELETE_S = 20.0
# What bin/kafka-server-start.sh gives the broker.
JVM = (
    *("-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
# Files of deleted topics go soon, so that the disk does not fill; and what is to be compacted is looked for often.
SETTINGS = {"log.segment.delete.delay.ms": "1000", "log.cleaner.backoff.ms": "200"}
METADATA_VERSION = 12
HEADER = struct.Struct(">hhih")


class Memory(NamedTuple):
    """Memory of a process tree, in MB."""

    rss: float
    pss: float


class Side(ABC):
    """One of the two brokers."""

    name: ClassVar[str]
    commit: ClassVar[Mapping[str, str]]  # topic settings: acknowledged means synced

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process."""

    @abstractmethod
    def partition(self, topic: str, index: int = 0) -> Path:
        """The folder of a partition's files."""

    def start(self, topic: str | None = None) -> float:
        """Start it; seconds until it answers with its metadata (and with the topic's leader, when one is named)."""
        began = time.perf_counter()
        self._process = self.launch()
        deadline = began + PATIENCE_S
        while not answers(self.address, topic):
            if self._process.poll() is not None or time.perf_counter() > deadline:
                raise RuntimeError(f"{self.name} did not start; see {self.folder}")
            time.sleep(0.005)
        return time.perf_counter() - began

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, if it runs. One that does not end in time is killed: subprocess.TimeoutExpired."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    def revive(self) -> None:
        """Kill and start it again, if it was running and does not answer any more."""
        if self._process is not None and not answers(self.address, None):
            print(f"{self.name} does not answer: it is started again", file=sys.stderr)
            self.stop(signal.SIGKILL)
            self.start()

    def _tree(self) -> list[psutil.Process]:
        assert self._process is not None, f"{self.name} runs"
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def cpu(self) -> float:
        """CPU seconds that it has used since its start, in user and system mode."""
        times = [process.cpu_times() for process in self._tree()]
        return sum(each.user + each.system for each in times)

    def memory(self) -> Memory:
        """What it holds now."""
        infos = [process.memory_full_info() for process in self._tree()]
        return Memory(sum(info.rss for info in infos) / 1e6, sum(info.pss for info in infos) / 1e6)

    # ---- topics

    def _admin(self) -> AdminClient:
        # To be held in a name until its futures are done: they fail when it goes. What goes wrong is in them, not in a log.
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has its leader."""
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not answers(self.address, topic):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: {topic} has no leader after {PATIENCE_S} s")
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        admin = self._admin()
        admin.delete_topics([topic], request_timeout=DELETE_S)[topic].result(PATIENCE_S)

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        admin = self._admin()
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    @contextmanager
    def topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> Iterator[str]:
        """A topic for one run; its disk space is given back."""
        self.create(name, partitions, config)
        try:
            yield name
        finally:
            try:
                self.delete(name)
            except KafkaException as error:
                print(f"{self.name}: {name} could not be deleted: {error}", file=sys.stderr)


class Millstream(Side):
    """Our broker."""

    name = OURS
    commit: ClassVar[Mapping[str, str]] = {"millstream.durability": "commit"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"127.0.0.1:{free_port()}"

    def launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream.broker", "--data", str(self.folder / "log")]
        command += ["--listen", self.address]
        command += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        with (self.folder / "broker.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def partition(self, topic: str, index: int = 0) -> Path:
        return self.folder / "log" / "topics" / topic / str(index)


class Kafka(Side):
    """Apache Kafka, one node that is controller and broker."""

    name = THEIRS
    commit: ClassVar[Mapping[str, str]] = {"flush.messages": "1"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kafka = ApacheKafka(folder, SETTINGS, JVM)
        self.address = self._kafka.address

    def launch(self) -> subprocess.Popen[bytes]:
        return self._kafka.launch()

    def partition(self, topic: str, index: int = 0) -> Path:
        return self.folder / "logs" / f"{topic}-{index}"


def answers(address: str, topic: str | None) -> bool:
    """Whether a broker answers with its metadata; with a topic: whether each of its partitions has a leader."""
    host, port = address.rsplit(":", 1)
    topics = [] if topic is None else [MetadataRequestTopic(name=topic)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    body = HEADER.pack(3, METADATA_VERSION, 1, 0) + b"\0" + request.encode(METADATA_VERSION)
    try:
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                size = int.from_bytes(stream.read(4), "big")
                data = stream.read(size)
    except OSError:
        return False
    if not size or len(data) < size:
        return False
    response = MetadataResponse.decode(data, METADATA_VERSION, 5)
    good = all(
        not found.error_code
        and found.partitions
        and all(p.leader_id >= 0 and not p.error_code for p in found.partitions)
        for found in response.topics
    )
    return bool(response.brokers) and good and len(response.topics) == len(topics)


class Watch:
    """The most memory that a side held while a block ran."""

    INTERVAL_S = 0.2

    def __init__(self, side: Side) -> None:
        self._side = side
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = Memory(0.0, 0.0)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(self.INTERVAL_S):
            now = self._side.memory()
            self.most = Memory(max(self.most.rss, now.rss), max(self.most.pss, now.pss))


def in_turn(sides: Sequence[Side], number: int) -> Sequence[Side]:
    """The sides in the order of the given repeat: each is first every other time."""
    return sides if number % 2 == 0 else sides[::-1]
