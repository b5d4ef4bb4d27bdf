"""Clients that send garbage, too slowly, too much or nothing, and that never read: the others go on, and memory stays bounded.

Each round lets a few dozen of them loose at once for some seconds beside a producer and a consumer whose records are
checked, and beside a client whose every request is timed. The broker may then not have grown beyond MOST_MIB, nor kept
anybody waiting longer than PATIENCE_S, nor met an error of its own, nor kept connections of clients that are gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from millstream.protocol import records
from millstream.protocol.messages import APIS
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.find_coordinator import FindCoordinatorRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.wire import Wire
from tests.proof.part import TRACE
from tests.torture.loads import Broker, Load, create, main, whole

FOES = 40  # at once
HORDE = 300  # silent connections of one foe
ROUND_S = 4.0
PATIENCE_S = 5.0
MOST_MIB = 400
QUEUED_BYTES = 64 << 20  # queued.max.request.bytes
MIB = 1 << 20


class Foe:
    """Somebody who means no good, until told to stop."""

    def __init__(self, address: str, chance: Random, stop: threading.Event) -> None:
        host, port = address.rsplit(":", 1)
        self.place, self.chance, self.stop = (host, int(port)), chance, stop
        self.open: list[socket.socket] = []

    def connect(self) -> socket.socket:
        made = socket.create_connection(self.place, timeout=10)
        self.open.append(made)
        return made

    def until_closed(self, connection: socket.socket, seconds: float = 0.5) -> None:
        """Read what comes until the broker closes, for a while."""
        connection.settimeout(seconds)
        try:
            while connection.recv(65536):
                pass
        except OSError:
            pass
        self.open.remove(connection)
        connection.close()

    def run(self) -> None:
        """One kind of nuisance, again and again."""
        act: Callable[[], None] = self.chance.choice(
            [
                self.noise,
                self.broken,
                self.broken,
                self.broken,
                self.giant,
                self.slow,
                self.silent,
                self.hoard,
                self.deaf,
                self.crowd,
            ]
        )
        while not self.stop.is_set():
            try:
                act()
            except OSError:  # the broker's right
                self.stop.wait(0.05)
        for connection in self.open:
            connection.close()

    def noise(self) -> None:
        """Random bytes."""
        connection = self.connect()
        connection.sendall(self.chance.randbytes(self.chance.randrange(1, 60_000)))
        self.until_closed(connection)

    def request(self) -> bytes:
        """A frame of a right request."""
        chance = self.chance
        batch = bytes(records.build([(b"k", bytes(100))] * chance.randrange(1, 5), int(time.time() * 1000)))
        name = chance.choice(["noise", "none", "", "a/b", "x" * 300])
        committed = OffsetCommitRequestPartition(0, 1)
        made, version = chance.choice(
            [
                (MetadataRequest([MetadataRequestTopic(name=name)], False), 12),
                (ProduceRequest(None, -1, 100, [TopicProduceData(name, bytes(16), [PartitionProduceData(0, batch)])]), 9),
                (FetchRequest(max_wait_ms=10, topics=[FetchTopic(name, partitions=[FetchPartition(0)])]), 12),
                (ListOffsetsRequest(topics=[ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1)])]), 7),
                (JoinGroupRequest(name, 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"\0")]), 9),
                (FindCoordinatorRequest(key_type=0, coordinator_keys=[name]), 4),
                (OffsetCommitRequest(name, -1, "", topics=[OffsetCommitRequestTopic("noise", partitions=[committed])]), 8),
                (ApiVersionsRequest("x", "1"), 3),
            ]
        )  # fmt: skip
        head = struct.pack(">hhih", made.API_KEY, version, chance.randrange(1000), 3) + b"foe\0"
        return head + made.encode(version)

    def broken(self) -> None:
        """Requests with wrong bytes, cut short, with something behind, or of an API and version that do not belong to them."""
        chance, connection = self.chance, self.connect()
        for _ in range(chance.randrange(1, 10)):
            body = bytearray(self.request())
            match chance.randrange(5):
                case 0:
                    for _ in range(chance.randrange(1, 6)):
                        body[chance.randrange(len(body))] = chance.randrange(256)
                case 1:
                    del body[chance.randrange(len(body)) :]
                case 2:
                    body += chance.randbytes(chance.randrange(1, 100))
                case 3:
                    body[:4] = struct.pack(">hh", chance.choice(list(APIS)), chance.randrange(20))
                case 4:
                    at = chance.randrange(14, len(body))
                    body[at : at + 4] = b"\xff\xff\xff\x7f"
            connection.sendall(struct.pack(">i", len(body)) + body)
        self.until_closed(connection)

    def giant(self) -> None:
        """Sizes that no frame has, or that are only announced."""
        connection = self.connect()
        size = self.chance.choice([-1, -(2**31), 0, 3, 2**31 - 1, 100 * MIB + 1, 99 * MIB])
        connection.sendall(struct.pack(">i", size) + struct.pack(">hhih", 0, 9, 1, 3) + b"foe\0")
        self.until_closed(connection)

    def slow(self) -> None:
        """A right request, byte by byte."""
        body = self.request()
        connection = self.connect()
        for byte in struct.pack(">i", len(body)) + body:
            connection.sendall(bytes([byte]))
            if self.stop.wait(0.02):
                return

    def silent(self) -> None:
        """Connections that say nothing."""
        while len(self.open) < HORDE:
            self.connect()
        self.stop.wait(1)

    def hoard(self) -> None:
        """Large Produce requests of which all but the end is sent, over several connections."""
        if len(self.open) < 8:
            connection = self.connect()
            connection.settimeout(0.5)
            connection.sendall(struct.pack(">ihhih", 90 * MIB, 0, 9, 1, 3) + b"foe\0")
        for connection in list(self.open):
            connection.sendall(bytes(2 * MIB))

    def deaf(self) -> None:
        """Asks for everything and never reads it."""
        connection = self.connect()
        connection.settimeout(0.5)
        ask = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 * MIB, session_epoch=-1, topics=[
            FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=50 * MIB)])])  # fmt: skip
        body = struct.pack(">hhih", 1, 12, 1, 3) + b"foe\0" + ask.encode(12)
        for _ in range(5000):
            connection.sendall(struct.pack(">i", len(body)) + body)
        self.stop.wait(1)

    def crowd(self) -> None:
        """Group members that come once, and names of groups and topics that are made up."""
        name = f"g{self.chance.randrange(10**6)}"
        with Wire("{}:{}".format(*self.place), "foe") as wire:
            for _ in range(20):
                wire.ask(
                    JoinGroupRequest(
                        name, 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"\0")]
                    ),
                    9,
                )
                wire.ask(MetadataRequest([MetadataRequestTopic(name=name)], False), 12)


class Watch:
    """Somebody whose every request is timed, and the broker's memory."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.topic = topic
        assert broker.popen is not None
        self.address, self.process = broker.address, Path(f"/proc/{broker.popen.pid}")
        self.slowest, self.most, self.asked = 0.0, 0.0, 0
        self.error: Exception | None = None
        self.slowest_said = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def memory(self) -> float:
        """The broker's resident memory in MiB."""
        line = next(each for each in (self.process / "status").read_text().splitlines() if each.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def connections(self) -> int:
        """Sockets that the broker has open."""
        found = 0
        for descriptor in (self.process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(descriptor).startswith("socket:")
        return found

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                begun = time.monotonic()
                with Wire(self.address, "watch") as wire:
                    connected = time.monotonic()
                    wire.socket.settimeout(60)
                    found = wire.ask(MetadataRequest([MetadataRequestTopic(name=self.topic)], False), 12)
                    assert not found.topics[0].error_code
                took = time.monotonic() - begun
                if took > self.slowest:
                    self.slowest = took
                    self.slowest_said = f"{time.strftime('%H:%M:%S')}, {connected - begun:.2f} s of it to connect"
                self.most = max(self.most, self.memory())
                self.asked += 1
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"
    broker = Broker(
        None, f"queued.max.request.bytes={QUEUED_BYTES}", "max.connections=5000", "group.min.session.timeout.ms=1000"
    )
    broker.start(data)
    create(broker.address, "t", segment_bytes=str(4 * MIB))
    create(broker.address, "noise", retention_bytes=str(8 * MIB), segment_bytes=str(MIB))
    load, watch = Load(broker.address, "t"), Watch(broker, "t")
    try:
        load.wait(100)
        before = watch.connections()
        for turn in range(1, count + 1):
            stop = threading.Event()
            foes = [Foe(broker.address, Random(chance.random()), stop) for _ in range(FOES)]
            threads = [threading.Thread(target=foe.run) for foe in foes]
            for thread in threads:
                thread.start()
            served = len(load.acknowledged)
            time.sleep(ROUND_S)
            served = len(load.acknowledged) - served
            stop.set()
            for thread in threads:
                thread.join()
            assert watch.error is None, watch.error
            assert served > 0, "the producer was kept from its work"
            assert watch.slowest < PATIENCE_S, f"a request took {watch.slowest:.1f} s, until {watch.slowest_said}"
            assert watch.most < MOST_MIB, f"the broker grew to {watch.most:.0f} MiB"
            deadline = time.monotonic() + 20
            while (now := watch.connections()) > before + 20:
                assert time.monotonic() < deadline, f"{now} connections are open, {before} before anybody came"
                time.sleep(0.1)
            said = broker.log.read_text()
            assert TRACE not in said, said[said.index(TRACE) - 500 :][:3000]
            there = load.check()
            print(
                f"round {turn}: {FOES} foes; {served} messages in {ROUND_S:.0f} s, slowest of {watch.asked} requests "
                f"{watch.slowest * 1000:.0f} ms, memory up to {watch.most:.0f} MiB, {there} records there",
                flush=True,
            )
    finally:
        watch.end()
        load.end()
        broker.end()
    assert watch.error is None, watch.error
    assert not load.failed, load.failed[:3]
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds)
