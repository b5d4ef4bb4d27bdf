"""A sequence of requests played on one broker: what names stand for there, and answers without what may differ.

A step names topics, producers, members and so on by small numbers; each broker gives them its own ids. Normalising
replaces those by their names again and leaves out what two brokers need not agree on: texts of errors, addresses,
throttle times, authorized operations, session ids, and the times when something happened.
"""

import re
import select
import socket
import struct
import time
import uuid
from typing import Any, NamedTuple

import msgspec

from millstream.protocol import errors, records
from millstream.protocol.messages import APIS
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.find_coordinator import FindCoordinatorRequest
from millstream.protocol.messages.heartbeat import HeartbeatRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.wire import Wire

# A minute ago: young enough for every retention, old enough to be told from the time of an append.
NOW = int(time.time() * 1000) - 60_000
HEAR_SECONDS = 0.7
SETTLE_SECONDS = 10.0
SILENCE_SECONDS = 5.0
# Fields that two brokers need not agree on.
LEFT_OUT = {
    "throttle_time_ms", "error_message", "host", "port", "rack", "cluster_id", "session_id", "finalized_features_epoch",
    "topic_authorized_operations", "cluster_authorized_operations", "authorized_operations", "log_append_time_ms",
    "client_host", "transaction_start_time_ms", "last_timestamp", "current_txn_start_offset", "coordinator_epoch",
    "current_leader", "configs", "diverging_epoch", "node_endpoints", "snapshot_id",
}  # fmt: skip
# Settings whose effect a client can see and that both brokers have.
SETTLED = {"CompleteCommit", "CompleteAbort", "Empty", "Ongoing", "Dead"}


class Parked(NamedTuple):
    """A request whose answer may come later, on its own connection."""

    wire: Wire
    request: Any
    version: int
    learn: Any


class World:
    """One broker during one sequence."""

    def __init__(self, address: str, run: str) -> None:
        self.address = address
        self.run = run  # makes names that no other sequence uses
        self.wire = Wire(address, "differential")
        self.topic_ids: dict[str, bytes] = {}
        self.producers: dict[int, tuple[int, int]] = {}  # slot -> producer id, epoch
        self.sequences: dict[tuple[int, str, int], int] = {}
        self.session = (0, 0)  # of fetches: its id, the next epoch
        # Of groups; a member is known by its group and slot.
        self.members: dict[tuple[str, int], str] = {}
        self.joined: set[tuple[str, int]] = set()  # who are members, as far as answers told
        self.generations: dict[str, int] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.told: dict[tuple[str, int], dict[bytes, list[int]]] = {}  # topic id -> partitions
        self._changed = 0.0  # when topics did
        self.votes: dict[tuple[str, int], str] = {}  # the assignors that members asked for
        self.settings: dict[str, dict[str, str]] = {}  # of groups
        self.parked: dict[str, Parked] = {}

    def close(self) -> None:
        self.wire.socket.close()
        for parked in self.parked.values():
            parked.wire.socket.close()

    def name(self, kind: str, slot: int) -> str:
        return f"{kind}{slot}-{self.run}"

    def instance(self, group: int, slot: int) -> str | None:
        """The instance id of a member; groups with odd numbers have static members."""
        return f"i{slot}" if group % 2 else None

    def consumer(self, group: str, slot: int) -> str:
        """The member id that a consumer of the new protocol makes for itself."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{group} {slot}"))

    def ask(self, request: Any, version: int) -> Any:
        """The answer, or what the broker does instead: "closed" or (within SILENCE_SECONDS) "silent"."""
        self.wire.socket.settimeout(SILENCE_SECONDS)
        try:
            return self.wire.ask(request, version)
        except ConnectionError:
            self.again()
            return "closed"
        except TimeoutError:
            self.again()
            return "silent"

    def again(self) -> None:
        """Connect anew."""
        self.wire.socket.close()
        self.wire = Wire(self.address, "differential")

    def tell(self, request: Any, version: int) -> str:
        """Send a request that has no answer; whether the broker closes the connection."""
        self.wire.send(request, version)
        answer = self.ask(MetadataRequest([]), 4)
        return answer if isinstance(answer, str) else "taken"

    def park(self, who: str, request: Any, version: int, learn: Any) -> None:
        """Send a request on a connection of its own; what this one asked before is given up."""
        before = self.parked.pop(who, None)
        if before is not None:
            before.wire.socket.close()
        wire = Wire(self.address, "differential")
        wire.send(request, version)
        self.parked[who] = Parked(wire, request, version, learn)

    def arrived(self, seconds: float) -> set[str]:
        """Whose parked requests have an answer (or a closed connection), waiting so long for the first one."""
        waiting = {parked.wire.socket: who for who, parked in self.parked.items()}
        ready, _, _ = select.select(list(waiting), [], [], seconds)
        return {waiting[each] for each in ready}

    def collect(self, who: str) -> Any:
        """The normal answer to a parked request."""
        parked = self.parked.pop(who)
        try:
            answer = parked.wire.receive(parked.request, parked.version)
        except ConnectionError:
            return "closed"
        finally:
            parked.wire.socket.close()
        if parked.learn is not None:
            parked.learn(answer)
        return self.normal(answer)

    def raw(self, key: int, version: int, body: bytes) -> str:
        """Send bytes as a request; whether the broker answers or closes the connection."""
        flexible = key in APIS and version >= APIS[key].flexible
        head = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if flexible else b"")
        return self._bytes(struct.pack(">i", len(head) + len(body)) + head + body)

    def cut(self, data: bytes) -> str:
        """Send bytes and nothing more, ever; whether the broker answers or closes the connection."""
        return self._bytes(data, end=True)

    def _bytes(self, data: bytes, end: bool = False) -> str:
        self.again()
        self.wire.socket.settimeout(SILENCE_SECONDS)
        try:
            self.wire.socket.sendall(data)
            if end:
                self.wire.socket.shutdown(socket.SHUT_WR)
            (size,) = struct.unpack(">i", self.wire.exactly(4))
            self.wire.exactly(size)
        except TimeoutError:
            return "silent"
        except OSError:
            return "closed"
        finally:
            self.again()
        return "answered"

    # ---- waiting for what Kafka does after its answer

    def settle_topics(self, expected: dict[str, int]) -> None:
        """Wait until the metadata shows what a change of topics was answered with (0 partitions: gone)."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            asked = [MetadataRequestTopic(name=name) for name in expected]
            found = {t.name: t for t in self.wire.ask(MetadataRequest(asked, False), 12).topics}
            ready = True
            for name, count in expected.items():
                topic = found[name]
                if count:
                    self.topic_ids[name] = topic.topic_id
                    leaders = [p for p in topic.partitions if p.leader_id >= 0 and not p.error_code]
                    ready &= len(leaders) == count
                else:
                    ready &= topic.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
            if ready:
                self._changed = time.monotonic()
            if ready and 0 in expected.values():
                self.let_groups_hear()
            if ready and all(self.leads(name, count) for name, count in expected.items() if count):
                return
            time.sleep(0.02)
        raise AssertionError(f"{self.address}: the topics did not become {expected}")

    def let_groups_hear(self) -> None:
        """Wait until Kafka's group coordinator has heard of the last change of topics, a moment after everybody else."""
        time.sleep(max(0.0, self._changed + HEAR_SECONDS - time.monotonic()))

    def leads(self, name: str, count: int) -> bool:
        """Whether the broker serves the topic's partitions already (Kafka: a moment after it shows them)."""
        asked = [ListOffsetsTopic(name, [ListOffsetsPartition(index, timestamp=-1) for index in range(count)])]
        [found] = self.wire.ask(ListOffsetsRequest(topics=asked), 7).topics
        return not any(part.error_code for part in found.partitions)

    def warm(self) -> None:
        """Wait until the coordinators work; Kafka makes their topics at the first request."""
        deadline = time.monotonic() + 4 * SETTLE_SECONDS
        for key, kind in ((self.name("g", 0), 0), (self.name("x", 0), 1)):
            while True:
                [found] = self.wire.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 4).coordinators
                if kind:
                    error = found.error_code or self.wire.ask(InitProducerIdRequest(key, 1000), 4).error_code
                else:
                    error = found.error_code or self.wire.ask(HeartbeatRequest(key, 1, "m"), 3).error_code
                if error in (0, errors.UNKNOWN_MEMBER_ID):
                    break
                assert time.monotonic() < deadline, f"{self.address}: the coordinators do not start ({error})"
                time.sleep(0.05)

    def settle_transaction(self, transactional_id: str) -> None:
        """Wait until the markers of a transaction are written."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            [found] = self.wire.ask(DescribeTransactionsRequest([transactional_id]), 0).transaction_states
            if found.error_code or found.transaction_state in SETTLED:
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.address}: the transaction {transactional_id} does not end")

    # ---- normalising

    def normal(self, value: Any, field: str = "") -> Any:
        """A value as another broker would have it, too."""
        if isinstance(value, msgspec.Struct):
            made = {}
            for name in value.__struct_fields__:
                if name not in LEFT_OUT:
                    made[name] = self.normal(getattr(value, name), name)
            return made
        if isinstance(value, list):
            return sorted((self.normal(each, field) for each in value), key=repr)
        if field == "batch_index_error_message":
            # The times of two brokers differ, and so do Kafka's own words for a record.
            return re.sub(r"-?\d{10,}", "N", re.sub(r"message .*Record\(.*?\)\.|message \d+\.", "message M.", value))
        if field == "records":
            return self.batches(value)
        if field in ("topic_id", "topic_ids"):
            return next(
                (n for n, known in self.topic_ids.items() if known == value), "unknown id" if any(value) else ""
            )
        if isinstance(value, memoryview | bytearray | bytes):
            return bytes(value).hex()
        if field == "timestamp" and NOW + 10_000 < value < 4 * 10**12:
            return "when it was appended"
        if field == "producer_id" and isinstance(value, int):
            return next((f"producer {slot}" for slot, (pid, _) in self.producers.items() if pid == value), value < 0)
        if isinstance(value, str):
            if value in self.members.values():
                return next(f"member {slot}" for (_, slot), known in self.members.items() if known == value)
            try:
                uuid.UUID(value[-36:])
            except ValueError:
                return value
            return "some member"
        return value

    def batches(self, data: Any) -> Any:
        """Record batches as values: everything that a consumer sees but the producer's id."""
        if data is None or not len(data):
            return []
        made: list[Any] = []
        data, end = bytes(data), 0
        while len(data) - end > records.HEADER_SIZE:  # Kafka may send a part of a batch at the end
            size = int.from_bytes(data[end + 8 : end + 12], "big") + records.OVERHEAD
            if end + size > len(data):
                break
            end += size
        for position, found in records.headers(data[:end]):
            batch = data[position : position + found.size]
            facts = (
                found.base_offset,
                found.attributes,
                found.producer_epoch,
                found.base_sequence,
                found.last_offset_delta,
            )
            if found.control:
                marker = records.marker(batch)
                made.append((found.base_offset, "control", marker.commit if marker else None))
                continue
            stamped = found.attributes & records.LOG_APPEND_TIME  # by each broker's own clock
            rows = [
                (r.offset, -1 if stamped else r.timestamp, r.key, r.value, r.headers) for r in records.records(batch)
            ]
            made.append((*facts, rows))
        return made
