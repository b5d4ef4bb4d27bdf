"""The producer that every part writes with: idempotent, acknowledged by all, bounded, partitioned as Java clients do."""

from __future__ import annotations

from confluent_kafka import Producer

from millstream.client.connect import config
from millstream.settings import Kafka

MAX_BUFFERED_KB = (
    64 * 1024
)  # unacknowledged bytes held in memory; produce() raises BufferError beyond, and the caller polls
MAX_BUFFERED_MESSAGES = 200_000


def producer(kafka: Kafka, **more: object) -> Producer:
    """Return a producer with Millstream's settings; `more` are librdkafka properties with `_` for `.`.

    Equal keys go to the partition that Java clients and Spark choose (murmur2). Call poll() for delivery reports, and
    flush() before leaving. When the log stays away, a message fails after `message.timeout.ms` (5 minutes).
    """
    return Producer(
        config(
            kafka,
            **{
                "acks": "all",
                "enable_idempotence": True,
                "partitioner": "murmur2_random",
                "linger_ms": 5,
                "queue_buffering_max_kbytes": MAX_BUFFERED_KB,
                "queue_buffering_max_messages": MAX_BUFFERED_MESSAGES,
            }
            | more,
        )
    )
