"""A transactional producer of version 2 (KIP-890), whose partitions join by being written to, over raw requests.

Batches are sent without waiting for each other. With each transaction goes an offset, the transaction's number, so that
records and offsets can be compared: what is committed for the group is the newest transaction that is there.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random

from millstream.protocol import errors, records
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.wire import Wire
from tests.torture.loads import stored
from tests.torture.transactions import PARTITIONS, parsed, value

WRITER = 200
TOPIC, GROUP, NAME = "newer", "newer", "newer"
PASSES = {errors.CONCURRENT_TRANSACTIONS, errors.COORDINATOR_NOT_AVAILABLE}


class Refused(Exception):
    """A request was answered with an error."""


class Newer:
    """Transactions over all partitions, with an offset; every seventh is aborted."""

    def __init__(self, address: str, chance: Random) -> None:
        self.address, self.chance = address, chance
        self.fate: dict[int, str] = {}
        self.size: dict[int, int] = {}
        self._wire: Wire | None = None
        self._producer = (-1, -1)

    def connect(self) -> Wire:
        """A new epoch, with which whatever was open is ended."""
        if self._wire is None:
            wire = Wire(self.address)
            try:
                while (found := wire.ask(InitProducerIdRequest(NAME, 60_000), 5)).error_code in PASSES:
                    time.sleep(0.01)
                if found.error_code:
                    raise Refused(f"InitProducerId: {errors.name(found.error_code)}")
            except BaseException:
                wire.socket.close()
                raise
            self._wire, self._producer = wire, (found.producer_id, found.producer_epoch)
        return self._wire

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.transaction(self.connect())
            except (OSError, Refused):
                if self._wire is not None:
                    self._wire.socket.close()
                    self._wire = None
                time.sleep(0.02)

    def transaction(self, wire: Wire) -> None:
        number = len(self.fate)
        self.fate[number] = "unknown"
        self.size[number] = count = self.chance.randrange(1, 40)
        sent: list[ProduceRequest] = []
        sequences = [0] * PARTITIONS
        for begin in range(0, count, 7):
            batches: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
            for index in range(begin, min(begin + 7, count)):
                batches[index % PARTITIONS].append(value(WRITER, number, index, self.chance))
            parts = [
                PartitionProduceData(place, memoryview(self.batch(batch, sequences[place])))
                for place, batch in enumerate(batches)
                if batch
            ]
            for place, batch in enumerate(batches):
                sequences[place] += len(batch)
            request = ProduceRequest(NAME, -1, 30_000, [TopicProduceData(TOPIC, partition_data=parts)])
            wire.send(request, 12)
            sent.append(request)
        codes = set()
        for request in sent:
            [topic] = wire.receive(request, 12).responses
            codes |= {part.error_code for part in topic.partition_responses}
        position = TxnOffsetCommitRequestTopic(TOPIC, partitions=[TxnOffsetCommitRequestPartition(0, number + 1)])
        answer = wire.ask(TxnOffsetCommitRequest(NAME, GROUP, *self._producer, topics=[position]), 5)
        codes.add(answer.topics[0].partitions[0].error_code)
        if codes != {0}:
            raise Refused(f"{sorted(map(errors.name, codes))}")
        commit = number % 7 != 6
        while (end := wire.ask(EndTxnRequest(NAME, *self._producer, commit), 5)).error_code in PASSES:
            time.sleep(0.01)
        if end.error_code:
            raise Refused(f"EndTxn: {errors.name(end.error_code)}")
        self.fate[number] = "committed" if commit else "aborted"
        self._producer = (end.producer_id, end.producer_epoch)

    def batch(self, values: list[bytes], sequence: int) -> bytearray:
        producer_id, epoch = self._producer
        return records.build(
            [(None, each) for each in values],
            int(time.time() * 1000),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def check(self) -> str:
        """Every transaction is whole or absent, as it was answered, and the offset is that of the newest one."""
        counts: Counter[int] = Counter()
        for partition, entries in stored(self.address, TOPIC, PARTITIONS).items():
            last = (-1, -1)
            for _, data in entries:
                _, transaction, index = parsed(data)
                assert last < (transaction, index), f"{partition}: {transaction}/{index} is doubled or late"
                last = (transaction, index)
                counts[transaction] += 1
        for transaction, fate in list(self.fate.items()):
            count, size = counts[transaction], self.size[transaction]
            right = {"committed": {size}, "aborted": {0}, "unknown": {0, size}}[fate]
            assert count in right, f"version 2: {count} of {size} records of {transaction}, which is {fate}"
        newest = max((transaction for transaction in self.fate if counts[transaction]), default=-2)
        topics = [OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])]
        with Wire(self.address) as wire:
            answer = wire.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=topics)]), 8)
        found = answer.groups[0].topics[0].partitions[0].committed_offset
        assert found == newest + 1, f"the offset of {found - 1} is committed, the newest transaction is {newest}"
        return f"{sum(fate == 'committed' for fate in self.fate.values())} of version 2"
