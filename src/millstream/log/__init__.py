"""The storage engine: Kafka's partitioned log on plain files, usable on its own.

An example, for a path `folder`:

    import os, time
    from pathlib import Path
    from millstream.log import Log
    from millstream.protocol import records

    with Log(Path(folder)) as log:
        topic = log.create("greetings", partitions=1, config={"retention.ms": "-1"})
        now = int(time.time() * 1000)
        topic.partitions[0].append(records.build([(b"en", b"hello"), (b"fr", b"salut")], now), now)
        found = topic.partitions[0].read(0, max_bytes=1_000_000)
        data = os.pread(found.slices[0].file, found.slices[0].size, found.slices[0].position)
        print([record.value for record in records.records(data)])
"""

from millstream.log.config import TopicConfig
from millstream.log.errors import (
    CorruptMessage,
    InvalidConfig,
    LogError,
    OffsetOutOfRange,
    StorageError,
    TopicExists,
    UnknownTopic,
)
from millstream.log.fetched import NotHere
from millstream.log.log import Log
from millstream.log.partition import Appended, Partition
from millstream.log.reading import Read, Slice
from millstream.log.topic import Topic
from millstream.log.verify import Damage, verify

__all__ = [
    "Appended",
    "CorruptMessage",
    "Damage",
    "InvalidConfig",
    "Log",
    "LogError",
    "NotHere",
    "OffsetOutOfRange",
    "Partition",
    "Read",
    "Slice",
    "StorageError",
    "Topic",
    "TopicConfig",
    "TopicExists",
    "UnknownTopic",
    "verify",
]
