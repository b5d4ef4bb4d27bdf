"""Settings: Kafka's names, defaults and rules."""

import pytest

from millstream.log.config import FOREVER, SETTINGS, Defaults, TopicConfig
from millstream.log.errors import InvalidConfig


def test_kafkas_defaults():
    config = TopicConfig()
    assert (config.compact, config.delete) == (False, True)
    assert config.retention_ms == 604_800_000
    assert config.retention_bytes == -1
    assert config.segment_bytes == 1_073_741_824
    assert config.max_message_bytes == 1_048_588
    assert config.timestamp_after_max_ms == 3_600_000
    assert config.timestamp_before_max_ms == FOREVER
    assert config.min_cleanable_dirty_ratio == 0.5
    assert config.durability == "os"
    assert config.get("compression.type") == "producer"


def test_every_default_passes_its_own_check():
    for name, setting in SETTINGS.items():
        assert setting.check(setting.default) is None, name


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("no.such.setting", "1", "unknown topic setting 'no.such.setting'"),
        ("retention.ms", "soon", "expected a whole number"),
        ("retention.ms", "-2", "from -1"),
        ("segment.bytes", "1048575", "from 1048576"),
        ("max.message.bytes", "3000000000", "to 2147483647"),
        ("cleanup.policy", "shrink", "expected compact, delete, both"),
        ("cleanup.policy", "delete,,compact", "expected compact, delete, both"),
        ("cleanup.policy", "delete,delete", "expected compact, delete, both"),
        ("cleanup.policy", ",", "expected compact, delete, both"),
        ("compression.gzip.level", "0", "from 1 to 9"),
        ("compression.gzip.level", "10", "to 9"),
        ("millstream.validation", "never", "check, trust"),
        ("min.cleanable.dirty.ratio", "1.5", "from 0 to 1"),
        ("message.timestamp.type", "Now", "CreateTime, LogAppendTime"),
        ("compression.type", "brotli", "producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("millstream.durability", "raid", "os, interval, commit"),
        ("remote.storage.enable", "true", "no tiered storage"),
        ("preallocate", "yes", "true, false"),
    ],
)
def test_what_is_refused(name, value, says):
    with pytest.raises(InvalidConfig, match=says) as caught:
        TopicConfig({name: value})
    assert caught.value.code == 40


def test_lags_that_contradict_each_other():
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        TopicConfig({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


def test_where_a_value_comes_from():
    defaults = Defaults({"log.retention.ms": "5", "segment.ms": "7", "producer.id.expiration.ms": "9"})
    assert defaults.producer_expiration_ms == 9
    config = TopicConfig({"segment.ms": "8"}, defaults.topics)
    assert (config.retention_ms, config.segment_ms) == (5, 8)
    assert [config.is_default(n) for n in ("retention.ms", "segment.ms", "flush.ms")] == [False, False, True]
    changed = config.with_changes({"segment.ms": None, "retention.ms": "6"})
    assert (changed.retention_ms, changed.segment_ms, changed.overrides) == (6, 7, {"retention.ms": "6"})
    with pytest.raises(InvalidConfig, match="unknown"):
        config.with_changes({"no.such": None})
    with pytest.raises(InvalidConfig, match="unknown setting"):
        Defaults({"no.such": "1"})


@pytest.mark.parametrize(
    ("overrides", "durability"),
    [
        ({}, "os"),
        ({"flush.messages": "1"}, "commit"),
        ({"flush.ms": "100"}, "interval"),
        ({"flush.ms": "100", "millstream.durability": "commit"}, "commit"),
        ({"flush.messages": "1", "millstream.durability": "os"}, "os"),
    ],
)
def test_kafkas_words_for_durability(overrides, durability):
    assert TopicConfig(overrides).durability == durability


def test_both_policies():
    config = TopicConfig({"cleanup.policy": "compact, delete"})
    assert config.compact and config.delete


def test_a_compacted_topic_rolls_in_time_for_its_maximal_lag():
    assert TopicConfig({"cleanup.policy": "compact", "max.compaction.lag.ms": "50"}).segment_ms == 50
    assert TopicConfig({"max.compaction.lag.ms": "50"}).segment_ms == 604_800_000
