"""Settings of topics and of the log: Kafka's names, defaults and rules, and our own that begin with `millstream.`.

Source: https://kafka.apache.org/documentation/#topicconfigs (4.x). A topic's setting comes from its overrides, else
from the defaults given to the log (Kafka's topic names or its broker names for them), else from the table below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millstream.log.archive import wrong_url
from millstream.log.errors import InvalidConfig
from millstream.log.overload import PIECES, POLICIES

FOREVER: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1
_DAY: Final = 86_400_000
_MIB: Final = 1024 * 1024

TYPES: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""Values of compression.type beside `producer`, by the numbers of the codecs."""
DURABILITY: Final = ("os", "interval", "commit")
INTERVAL_MS: Final = 1000
"""fsync interval of `millstream.durability=interval` while flush.ms is left at Kafka's "never"."""

Check = Callable[[str], str | None]


class Setting(NamedTuple):
    """One setting: its type ("int", "long", "double", "boolean", "string" or "list"), default and rule.

    `check` returns None, or what is wrong with a value. `effect` is False for settings that Kafka's clients send and
    that mean nothing on a single machine: they are checked, kept and shown.
    """

    kind: str
    default: str
    check: Check
    synonym: str | None = None
    effect: bool = True


def _number(low: int, high: int) -> Check:
    def check(value: str) -> str | None:
        try:
            number = int(value)
        except ValueError:
            return "expected a whole number"
        if not low <= number <= high:
            return f"expected a whole number from {low} to {high}"
        return None

    return check


def _long(low: int) -> Check:
    return _number(low, FOREVER)


def _int(low: int) -> Check:
    return _number(low, _INT_MAX)


def _ratio(value: str) -> str | None:
    try:
        return None if 0 <= float(value) <= 1 else "expected a number from 0 to 1"
    except ValueError:
        return "expected a number from 0 to 1"


def _one_of(*choices: str) -> Check:
    def check(value: str) -> str | None:
        return None if value in choices else f"expected one of {', '.join(choices)}"

    return check


def _policy(value: str) -> str | None:
    # As Kafka's ConfigDef.ValidList: empty, or values that are neither empty nor repeated.
    parts = [part.strip() for part in value.split(",")] if value.strip() else []
    if not set(parts) <= {"compact", "delete"} or len(parts) > len(set(parts)):
        return "expected compact, delete, both separated by a comma, or nothing (everything is kept)"
    return None


def _gzip_level(value: str) -> str | None:
    # CompressionType.GZIP.levelValidator: 0 is none.
    return "expected -1, or a whole number from 1 to 9" if value == "0" else _number(-1, 9)(value)


def _throttled(value: str) -> str | None:
    return (
        None if value in ("", "*") or re.fullmatch(r"\d+:\d+(,\d+:\d+)*", value) else "expected partition:broker pairs"
    )


def _only(value: str, why: str) -> Check:
    def check(given: str) -> str | None:
        return None if given == value else f"expected {value}: {why}"

    return check


_BOOLEAN = _one_of("true", "false")

SETTINGS: Final[dict[str, Setting]] = {
    "cleanup.policy": Setting("list", "delete", _policy, "log.cleanup.policy"),
    "compression.gzip.level": Setting("int", "-1", _gzip_level, "compression.gzip.level"),
    "compression.lz4.level": Setting("int", "9", _number(1, 17), "compression.lz4.level"),
    "compression.type": Setting("string", "producer", _one_of("producer", *TYPES), "compression.type"),
    "compression.zstd.level": Setting("int", "3", _number(-131072, 22), "compression.zstd.level"),
    "delete.retention.ms": Setting("long", str(_DAY), _long(0), "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": Setting("long", "60000", _long(0), "log.segment.delete.delay.ms", False),
    "errors.deadletterqueue.group.enable": Setting("boolean", "false", _BOOLEAN, None, False),
    "flush.messages": Setting("long", str(FOREVER), _long(1), "log.flush.interval.messages"),
    "flush.ms": Setting("long", str(FOREVER), _long(0), "log.flush.interval.ms"),
    "follower.replication.throttled.replicas": Setting("list", "", _throttled, None, False),
    "index.interval.bytes": Setting("int", "4096", _int(0), "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": Setting("list", "", _throttled, None, False),
    "local.retention.bytes": Setting("long", "-2", _long(-2), "log.local.retention.bytes"),
    "local.retention.ms": Setting("long", "-2", _long(-2), "log.local.retention.ms"),
    "max.compaction.lag.ms": Setting("long", str(FOREVER), _long(1), "log.cleaner.max.compaction.lag.ms"),
    "max.decompressed.message.bytes": Setting(
        "int", "2147483639", _number(1, 2147483639), "max.decompressed.message.bytes"
    ),
    "max.message.bytes": Setting("int", str(_MIB + 12), _int(0), "message.max.bytes"),
    "message.timestamp.after.max.ms": Setting("long", "3600000", _long(0), "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": Setting("long", str(FOREVER), _long(0), "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": Setting(
        "string", "CreateTime", _one_of("CreateTime", "LogAppendTime"), "log.message.timestamp.type"
    ),
    "min.cleanable.dirty.ratio": Setting("double", "0.5", _ratio, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": Setting("long", "0", _long(0), "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": Setting("int", "1", _int(1), "min.insync.replicas"),
    "preallocate": Setting("boolean", "false", _BOOLEAN, "log.preallocate", False),
    "remote.copy.lag.bytes": Setting("long", "0", _long(-1), None, False),
    "remote.copy.lag.ms": Setting("long", "0", _long(-1), None, False),
    "remote.log.copy.disable": Setting("boolean", "false", _BOOLEAN, None, False),
    "remote.log.delete.on.disable": Setting("boolean", "false", _BOOLEAN, None, False),
    "remote.storage.enable": Setting(
        "boolean", "false", _only("false", "there is no tiered storage, see millstream.archive"), None, False
    ),
    "retention.bytes": Setting("long", "-1", _long(-FOREVER - 1), "log.retention.bytes"),
    "retention.ms": Setting("long", str(7 * _DAY), _long(-1), "log.retention.ms"),
    "segment.bytes": Setting("int", str(1024 * _MIB), _int(_MIB), "log.segment.bytes"),
    "segment.index.bytes": Setting("int", str(10 * _MIB), _int(4), "log.index.size.max.bytes"),
    "segment.jitter.ms": Setting("long", "0", _long(0), "log.roll.jitter.ms", False),
    "segment.ms": Setting("long", str(7 * _DAY), _long(1), "log.roll.ms"),
    "unclean.leader.election.enable": Setting("boolean", "false", _BOOLEAN, "unclean.leader.election.enable", False),
    "millstream.archive": Setting("string", "", wrong_url),
    "millstream.backlog.bytes": Setting("long", str(256 * _MIB), _long(1), "millstream.backlog.bytes"),
    "millstream.backlog.exclude": Setting("list", "", lambda value: None),
    "millstream.durability": Setting("string", "os", _one_of(*DURABILITY), "millstream.durability"),
    "millstream.overload": Setting("string", "buffer", _one_of(*POLICIES)),
    "millstream.validation": Setting("string", "check", _one_of("check", "trust"), "millstream.validation"),
}
"""Every setting of a topic that the log knows, by name."""

HIDDEN: Final[dict[str, Setting]] = {
    "internal.segment.bytes": Setting("int", "", _int(14), None),
}
"""Settings for tests, as Kafka has them: accepted, not listed. This one goes below segment.bytes' minimum."""

ENGINE: Final[dict[str, Setting]] = {
    "producer.id.expiration.ms": Setting("int", str(_DAY), _int(1)),
    "millstream.archive.allow": Setting("list", "", lambda value: None),
    "millstream.archive.cache.bytes": Setting("long", str(1024 * _MIB), _long(0)),
    "log.cleaner.dedupe.buffer.size": Setting("long", str(128 * _MIB), _long(64 * 1024)),
}
"""Settings of the whole log, by Kafka's broker names."""

_SYNONYMS: Final = {s.synonym: name for name, s in SETTINGS.items() if s.synonym is not None}


def policies(value: str) -> frozenset[str]:
    """The parts of a cleanup.policy."""
    return frozenset(part.strip() for part in value.split(",") if part.strip())


def checked(overrides: Mapping[str, str]) -> dict[str, str]:
    """`overrides` as a dictionary; InvalidConfig when a name is unknown or a value is not allowed."""
    for name, value in overrides.items():
        setting = SETTINGS.get(name) or HIDDEN.get(name)
        if setting is None:
            raise InvalidConfig(f"unknown topic setting {name!r}: expected one of {', '.join(sorted(SETTINGS))}")
        _check(name, setting, value)
    return dict(overrides)


def _check(name: str, setting: Setting, value: str) -> None:
    if not isinstance(value, str):
        raise InvalidConfig(f"{name} has the value {value!r}: expected text")
    wrong = setting.check(value)
    if wrong is not None:
        raise InvalidConfig(f"{name} has the value {value!r}: {wrong}")


class Defaults:
    """The log's own settings and its defaults for topics."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.topics: dict[str, str] = {}
        engine = {name: setting.default for name, setting in ENGINE.items()}
        for name, value in (given or {}).items():
            if name in ENGINE:
                _check(name, ENGINE[name], value)
                engine[name] = value
                continue
            topic_name = _SYNONYMS.get(name, name)
            setting = SETTINGS.get(topic_name) or HIDDEN.get(topic_name)
            if setting is None:
                raise InvalidConfig(
                    f"unknown setting {name!r}: expected a topic setting, its broker name, or one of "
                    f"{', '.join(sorted(ENGINE))}"
                )
            _check(name, setting, value)
            self.topics[topic_name] = value
        self.producer_expiration_ms = int(engine["producer.id.expiration.ms"])
        self.archive_allow = tuple(
            part.strip() for part in engine["millstream.archive.allow"].split(",") if part.strip()
        )
        self.archive_cache_bytes = int(engine["millstream.archive.cache.bytes"])
        self.dedupe_bytes = int(engine["log.cleaner.dedupe.buffer.size"])


class TopicConfig:
    """The settings in effect for a topic: as text by `get`, as numbers by attribute. Immutable: a change makes a new one."""

    def __init__(self, overrides: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None) -> None:
        """InvalidConfig when an override is unknown or not allowed; `defaults` have been checked before."""
        self.overrides: dict[str, str] = checked(overrides or {})
        self._defaults = dict(defaults or {})
        get = self.get
        cleanup = policies(get("cleanup.policy"))
        self.compact = "compact" in cleanup
        self.delete = "delete" in cleanup
        self.retention_ms = int(get("retention.ms"))
        self.retention_bytes = int(get("retention.bytes"))
        self.segment_bytes = int(get("internal.segment.bytes") or get("segment.bytes"))
        self.max_compaction_lag_ms = int(get("max.compaction.lag.ms"))
        # As in Kafka: a record that has to be compacted in time must leave the active segment in time.
        self.segment_ms = int(get("segment.ms"))
        if self.compact:
            self.segment_ms = min(self.segment_ms, self.max_compaction_lag_ms)
        self.max_message_bytes = int(get("max.message.bytes"))
        self.max_decompressed_bytes = int(get("max.decompressed.message.bytes"))
        self.codec = None if get("compression.type") == "producer" else TYPES.index(get("compression.type"))
        self.level = self._level()
        self.index_interval_bytes = int(get("index.interval.bytes"))
        self.segment_index_entries = max(1, int(get("segment.index.bytes")) // 8)
        self.log_append_time = get("message.timestamp.type") == "LogAppendTime"
        self.timestamp_before_max_ms = int(get("message.timestamp.before.max.ms"))
        self.timestamp_after_max_ms = int(get("message.timestamp.after.max.ms"))
        self.min_compaction_lag_ms = int(get("min.compaction.lag.ms"))
        self.min_cleanable_dirty_ratio = float(get("min.cleanable.dirty.ratio"))
        self.delete_retention_ms = int(get("delete.retention.ms"))
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is above max.compaction.lag.ms "
                f"({self.max_compaction_lag_ms})"
            )
        self.flush_messages = int(get("flush.messages"))
        self.flush_ms = int(get("flush.ms"))
        self.durability = self._durability()
        self.overload = get("millstream.overload")
        self.drop = self.overload == "drop"
        if self.drop and (self.compact or not self.delete):
            raise InvalidConfig(
                "millstream.overload=drop needs cleanup.policy=delete: a ring of the newest holds no keys"
            )
        if self.drop and self.retention_bytes >= 0:
            # Whole segments go, so small ones make the ring follow its bound.
            piece = max(self.retention_bytes // PIECES, self.max_message_bytes)
            self.segment_bytes = min(self.segment_bytes, piece)
        self.archive = get("millstream.archive")
        self.local_retention_ms = int(get("local.retention.ms"))
        self.local_retention_bytes = int(get("local.retention.bytes"))
        if self.archive:
            self._check_archive()
        self.backlog_bytes = int(get("millstream.backlog.bytes"))
        self.backlog_exclude = tuple(
            part.strip() for part in get("millstream.backlog.exclude").split(",") if part.strip()
        )
        self.trusts = get("millstream.validation") == "trust" and not self._looks_inside()
        self.flush_interval_ms = self.flush_ms if self.flush_ms < FOREVER else INTERVAL_MS

    def _level(self) -> int | None:
        name = "" if self.codec is None else f"compression.{TYPES[self.codec]}.level"
        return int(self.get(name)) if name in SETTINGS else None

    def _looks_inside(self) -> bool:
        """Whether a setting is about each record."""
        return (
            self.compact
            or (self.timestamp_before_max_ms < FOREVER and not self.log_append_time)
            or self.max_decompressed_bytes < int(SETTINGS["max.decompressed.message.bytes"].default)
        )

    def _check_archive(self) -> None:
        if self.compact:
            raise InvalidConfig("millstream.archive needs cleanup.policy=delete: what is archived is not rewritten")
        if self.drop:
            raise InvalidConfig(
                "millstream.archive and millstream.overload=drop: the ring would be gone before its copy"
            )
        for name, local, total in (
            ("ms", self.local_retention_ms, self.retention_ms),
            ("bytes", self.local_retention_bytes, self.retention_bytes),
        ):
            if local != -2 and total >= 0 and not 0 <= local <= total:
                raise InvalidConfig(f"local.retention.{name} ({local}) is above retention.{name} ({total})")

    def _durability(self) -> str:
        if "millstream.durability" in self.overrides:
            return self.overrides["millstream.durability"]
        # Kafka's own words for it: with flush.messages Kafka syncs inside the append, which `commit` covers for any n.
        if self.flush_messages < FOREVER:
            return "commit"
        if self.flush_ms < FOREVER:
            return "interval"
        return self.get("millstream.durability")

    def get(self, name: str) -> str:
        """The value in effect, as text; KeyError for an unknown name."""
        if name in self.overrides:
            return self.overrides[name]
        if name in self._defaults:
            return self._defaults[name]
        setting = SETTINGS.get(name)
        return setting.default if setting is not None else HIDDEN[name].default

    def is_default(self, name: str) -> bool:
        """Whether neither the topic nor the log's own defaults set `name`."""
        return name not in self.overrides and name not in self._defaults

    def with_changes(self, changes: Mapping[str, str | None]) -> TopicConfig:
        """The settings after `changes`; None removes an override. InvalidConfig as for a new one."""
        overrides = dict(self.overrides)
        for name, value in changes.items():
            if value is None:
                if name not in SETTINGS and name not in HIDDEN:
                    checked({name: ""})
                overrides.pop(name, None)
            else:
                overrides[name] = value
        return TopicConfig(overrides, self._defaults)
