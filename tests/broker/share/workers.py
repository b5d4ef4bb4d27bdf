"""Members of share groups on the wire, and what they need: for tests that want to see every request and answer."""

from __future__ import annotations

import time
import uuid

from millstream.protocol import records
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from millstream.protocol.messages.share_fetch import AcknowledgementBatch as FetchAcknowledgementBatch
from millstream.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from millstream.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.broker.wire import Wire

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def fresh(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def create(wire: Wire, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Make a topic; its id."""
    settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    [made] = wire.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], settings)], 5000), 7).topics
    assert made.error_code == 0, made
    return topic_id(wire, name)


def topic_id(wire: Wire, name: str) -> bytes:
    return bytes(wire.ask(MetadataRequest([MetadataRequestTopic(bytes(16), name)]), 12).topics[0].topic_id)


def produce(wire: Wire, name: str, *values: bytes, partition: int = 0, **batch) -> int:
    """Append one batch; its first offset."""
    data = records.build([(None, value) for value in values], int(time.time() * 1000), **batch)
    parts = [PartitionProduceData(partition, bytes(data))]
    transactional = "t" if batch.get("transactional") else None
    answer = wire.ask(ProduceRequest(transactional, -1, 5000, [TopicProduceData(name, bytes(16), parts)]), 9)
    [told] = answer.responses[0].partition_responses
    assert told.error_code == 0, told
    return told.base_offset


def configure(wire: Wire, group: str, **configs: str) -> int:
    """Set settings of a group; the error code."""
    changes = [AlterableConfig(name.replace("_", "."), 0, value) for name, value in configs.items()]
    return wire.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(32, group, changes)])).responses[0].error_code


class Worker:
    """A member on a connection of its own, of one topic."""

    def __init__(self, address: str, group: str, topic: str, name: str = "", partitions: int = 1) -> None:
        self.wire = Wire(address)
        self.group, self.topic, self.id = group, topic_id(self.wire, topic), name or str(uuid.uuid4())
        self.name = topic
        self.places = range(partitions)
        self.session = 0
        self.epoch = 0

    def join(self):
        """Heartbeat; the answer."""
        topics = [self.name] if not self.epoch else None
        answer = self.wire.ask(ShareGroupHeartbeatRequest(self.group, self.id, self.epoch, None, topics))
        if not answer.error_code:
            self.epoch = answer.member_epoch
        return answer

    def leave(self):
        return self.wire.ask(ShareGroupHeartbeatRequest(self.group, self.id, -1))

    def request(self, *acks, wait: int = 0, records: int = 500, renew: bool = False, **more) -> ShareFetchRequest:
        said = [FetchAcknowledgementBatch(first, last, list(types)) for first, last, *types in acks]
        topics = []
        if not self.session or said:
            topics = [FetchTopic(self.topic, [FetchPartition(p, 0, said if p == 0 else []) for p in self.places])]
        bounds = (0, 0, 0, 0) if renew else (wait, 1, 1 << 20, records)
        request = ShareFetchRequest(self.group, self.id, self.session, *bounds, more.pop("batch_size", 500))
        request.topics, request.is_renew_ack = topics, renew
        request.share_acquire_mode = more.pop("mode", 0)
        self.session = more.pop("session", self.session + 1)
        return request

    def fetch(self, *acks, **more):
        """ShareFetch; the answer."""
        version = more.pop("version", 2)
        return self.wire.ask(self.request(*acks, **more), version)

    def take(self, *acks, **more) -> list[tuple[int, int]]:
        """Offsets and delivery counts that it gets (of all partitions)."""
        return acquired(self.fetch(*acks, **more))

    def acknowledge(self, *acks, renew: bool = False, session: int | None = None):
        """ShareAcknowledge of partition 0: the error code of the request, or of the partition."""
        said = [AcknowledgementBatch(first, last, list(types)) for first, last, *types in acks]
        epoch = self.session if session is None else session
        request = ShareAcknowledgeRequest(self.group, self.id, epoch, renew)
        request.topics = [AcknowledgeTopic(self.topic, [AcknowledgePartition(0, said)])]
        answer = self.wire.ask(request)
        if not answer.error_code:
            self.session += 1
        return answer.error_code or answer.responses[0].partitions[0].error_code

    def close(self):
        self.wire.__exit__()


def acquired(answer) -> list[tuple[int, int]]:
    """What an answer gives: offsets and delivery counts; its records hold all of them."""
    assert answer.error_code == 0, answer
    found = []
    for topic in answer.responses:
        for part in topic.partitions:
            assert part.error_code == 0, part
            there = set()
            data = memoryview(bytes(part.records))
            for position, header in records.headers(data):
                batch = data[position : position + header.size]
                there |= {record.offset for record in records.records(batch)} if not header.control else set()
            for each in part.acquired_records:
                offsets = range(each.first_offset, each.last_offset + 1)
                found += [(offset, each.delivery_count) for offset in offsets]
                assert there & set(offsets)
    return found
