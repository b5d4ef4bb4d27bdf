"""Our broker and Apache Kafka side by side, for all tests of this folder."""

import os
import uuid
from contextlib import nullcontext

import pytest

from tests.apache_kafka import apache_kafka
from tests.broker.serving import Process
from tests.differential.world import World

# Kafka's new group protocol assigns at once, as ours: not from time to time in the background. Transactions that take
# too long are looked for every half second instead of every ten.
KAFKA = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    "group.share.assignment.interval.ms": "0",
    "group.share.assignor.offload.enable": "false",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="package")
def brokers(tmp_path_factory):
    """The addresses of both, ours first; MILLSTREAM_TEST_KAFKA may name a Kafka that runs with these settings."""
    folder = tmp_path_factory.mktemp("differential")
    (folder / "kafka").mkdir()
    with Process(folder / "ours") as ours:
        address = os.environ.get("MILLSTREAM_TEST_KAFKA")
        with nullcontext(address) if address else apache_kafka(folder / "kafka", KAFKA) as kafka:
            found = ours.address, address or kafka.bootstrap
            for each in found:
                # Both partitions of each of Kafka's coordinator topics must be led.
                for _ in range(4):
                    world = World(each, uuid.uuid4().hex[:8])
                    world.warm()
                    world.close()
            yield found
