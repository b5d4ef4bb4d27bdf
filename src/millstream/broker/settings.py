"""The broker's settings, by Apache Kafka's names where Kafka has them; unknown names and wrong values are refused.

Topic settings by their broker names (log.retention.ms, log.segment.bytes, message.max.bytes, ...) are the log's: see
`millstream.log.config`. Defaults are Kafka's except where a comment here says otherwise.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.log.config import ENGINE, SETTINGS, Defaults, Setting
from millstream.log.errors import InvalidConfig

INT_MAX = 0x7FFFFFFF
LONG_MAX = 0x7FFFFFFFFFFFFFFF


class SettingsError(ValueError):
    """A setting that is unknown or has a wrong value; the text says which and what to do."""


class Known(NamedTuple):
    """A setting: kind ("int", "long", "boolean", "string"), default, smallest and largest value of a number."""

    kind: str
    default: str
    low: int = 0
    high: int = INT_MAX
    only: str | None = None  # the one value that is possible on a single machine
    choices: tuple[str, ...] = ()  # the values of a string, or the elements of a list


KNOWN: dict[str, Known] = {
    "node.id": Known("int", "0"),
    "num.partitions": Known("int", "1", 1, 10_000),
    "auto.create.topics.enable": Known("boolean", "true"),
    "delete.topic.enable": Known("boolean", "true"),
    "default.replication.factor": Known("int", "1", only="1"),
    # -1: left to the system, which makes megabytes of it for a fast client. What is sent costs broker and client less while
    # it is still in the processor's cache; what is received is read in large pieces, so that here Kafka's 102400 costs more.
    "socket.send.buffer.bytes": Known("int", "102400", -1),
    "socket.receive.buffer.bytes": Known("int", "-1", -1),
    "socket.request.max.bytes": Known("int", str(100 * 1024 * 1024), 1024),
    # Kafka's default is no bound (-1). Buffers of unfinished large requests, over all connections.
    "queued.max.request.bytes": Known("long", str(256 * 1024 * 1024), 1024 * 1024, LONG_MAX),
    # Kafka's default is no bound.
    "max.connections": Known("int", "10000", 1),
    "max.connection.creation.rate": Known("int", str(INT_MAX), 1),
    "connections.max.idle.ms": Known("long", "600000", 1000, LONG_MAX),
    "group.min.session.timeout.ms": Known("int", "6000", 1),
    "group.max.session.timeout.ms": Known("int", "1800000", 1),
    # Kafka waits 3000 so that a fleet's first members join one generation. On one machine that wait would be most of
    # an application's start, and a rebalance of a few members takes milliseconds.
    "group.initial.rebalance.delay.ms": Known("int", "0"),
    "group.max.size": Known("int", str(INT_MAX), 1),
    # Kafka spreads groups over 50 partitions so that many brokers share them; here one is written by one broker.
    "offsets.topic.num.partitions": Known("int", "1", 1, 1000),
    "offsets.topic.replication.factor": Known("int", "1", only="1"),
    "offsets.topic.segment.bytes": Known("int", str(100 * 1024 * 1024), 1024 * 1024),
    "offsets.retention.minutes": Known("int", "10080", 1),
    "offsets.retention.check.interval.ms": Known("long", "600000", 1, LONG_MAX),
    "offset.metadata.max.bytes": Known("int", "4096"),
    "group.consumer.heartbeat.interval.ms": Known("int", "5000", 1),
    "group.consumer.min.heartbeat.interval.ms": Known("int", "5000", 1),
    "group.consumer.max.heartbeat.interval.ms": Known("int", "15000", 1),
    "group.consumer.session.timeout.ms": Known("int", "45000", 1),
    "group.consumer.min.session.timeout.ms": Known("int", "45000", 1),
    "group.consumer.max.session.timeout.ms": Known("int", "60000", 1),
    "group.consumer.max.size": Known("int", str(INT_MAX), 1),
    "group.consumer.migration.policy": Known(
        "string", "bidirectional", choices=("disabled", "upgrade", "downgrade", "bidirectional")
    ),
    "group.share.heartbeat.interval.ms": Known("int", "5000", 1),
    "group.share.min.heartbeat.interval.ms": Known("int", "5000", 1),
    "group.share.max.heartbeat.interval.ms": Known("int", "15000", 1),
    "group.share.session.timeout.ms": Known("int", "45000", 1),
    "group.share.min.session.timeout.ms": Known("int", "45000", 1),
    "group.share.max.session.timeout.ms": Known("int", "60000", 1),
    "group.share.max.size": Known("int", "200", 1, 1000),
    "group.share.max.share.sessions": Known("int", "2000", 1),
    "group.share.delivery.count.limit": Known("int", "5", 2, 100),
    "group.share.min.delivery.count.limit": Known("int", "2", 2, 5),
    "group.share.max.delivery.count.limit": Known("int", "10", 5, 100),
    # Kafka takes no lock below a second: tests want shorter ones.
    "group.share.record.lock.duration.ms": Known("int", "30000", 1, 3_600_000),
    "group.share.min.record.lock.duration.ms": Known("int", "15000", 1, 30_000),
    "group.share.max.record.lock.duration.ms": Known("int", "60000", 30_000, 3_600_000),
    "group.share.partition.max.record.locks": Known("int", "2000", 100, 10_000),
    "group.share.min.partition.max.record.locks": Known("int", "100", 100, 2000),
    "group.share.max.partition.max.record.locks": Known("int", "4000", 2000, 10_000),
    # As above: one partition is enough for one broker (Kafka: 50).
    "transaction.state.log.num.partitions": Known("int", "1", 1, 1000),
    "transaction.state.log.replication.factor": Known("int", "1", only="1"),
    "transaction.state.log.min.isr": Known("int", "1", only="1"),
    "transaction.state.log.segment.bytes": Known("int", str(100 * 1024 * 1024), 1024 * 1024),
    "transaction.max.timeout.ms": Known("int", "900000", 1),
    "transactional.id.expiration.ms": Known("int", "604800000", 1),
    # As above.
    "share.coordinator.state.topic.num.partitions": Known("int", "1", 1, 1000),
    "share.coordinator.state.topic.replication.factor": Known("int", "1", only="1"),
    "share.coordinator.state.topic.min.isr": Known("int", "1", only="1"),
    "share.coordinator.state.topic.segment.bytes": Known("int", str(100 * 1024 * 1024), 1024 * 1024),
    "share.coordinator.snapshot.update.records.per.snapshot": Known("int", "500", 0, 500),
    "share.coordinator.state.topic.prune.interval.ms": Known("int", "300000", 1),
    # Taken, and not needed: overdue transactions end just in time, and retention looks for work every second.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Known("int", "10000", 1),
    "log.retention.check.interval.ms": Known("long", "300000", 1, LONG_MAX),
    # How often the log looks for work, at least every second.
    "log.cleaner.backoff.ms": Known("long", "15000", 0, LONG_MAX),
    # What clients are told to connect to; empty: the addresses of --listen.
    "advertised.listeners": Known("string", ""),
    "max.connections.per.ip": Known("int", str(INT_MAX)),
    # Kafka's default is GSSAPI (Kerberos), which is not served.
    "sasl.enabled.mechanisms": Known(
        "list", "SCRAM-SHA-256,SCRAM-SHA-512", choices=("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    ),
    "connections.max.reauth.ms": Known("long", "0", 0, LONG_MAX),
    "sasl.server.max.receive.size": Known("int", "524288", 1024),
    "connection.failed.authentication.delay.ms": Known("int", "100"),
    # Kafka's default is JKS, Java's own format.
    "ssl.keystore.type": Known("string", "PEM", choices=("PEM",)),
    "ssl.keystore.location": Known("string", ""),
    "ssl.key.password": Known("password", ""),
    "ssl.truststore.type": Known("string", "PEM", choices=("PEM",)),
    "ssl.truststore.location": Known("string", ""),
    "ssl.client.auth": Known("string", "none", choices=("none", "requested", "required")),
    "ssl.enabled.protocols": Known("list", "TLSv1.2,TLSv1.3", choices=("TLSv1.2", "TLSv1.3")),
    "ssl.cipher.suites": Known("list", ""),
    # Listen on addresses that others can reach without TLS or authentication. Kafka always does.
    "millstream.allow.insecure.listeners": Known("boolean", "false"),
    "authorizer.class.name": Known(
        "string", "", choices=("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    ),
    "super.users": Known("string", ""),
    "allow.everyone.if.no.acl.found": Known("boolean", "false"),
    "quota.window.num": Known("int", "11", 1, 1000),
    "quota.window.size.seconds": Known("int", "1", 1, 3600),
    "controller.quota.window.num": Known("int", "11", 1, 1000),
    "controller.quota.window.size.seconds": Known("int", "1", 1, 3600),
}
# Coarser names of a topic setting, with the milliseconds in one of their units; Kafka lets the finest one win.
COARSE = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
}
# Names that Kafka users would try, and what to use here.
INSTEAD = {
    "log.dir": "--data DIR",
    "log.dirs": "--data DIR",
    "listeners": "--listen HOST:PORT",
    "broker.id": "node.id",
}
TOPIC_SYNONYMS = {setting.synonym: name for name, setting in SETTINGS.items() if setting.synonym is not None}
# What can be changed while the broker runs; of Kafka's, those that exist here (DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS).
DYNAMIC = frozenset({*TOPIC_SYNONYMS, "max.connection.creation.rate", "max.connections", "max.connections.per.ip"})


class Settings:
    """The settings in effect. `log_defaults` is the part that the log takes, `static` what was given at start."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(given or {})
        self.values: dict[str, str] = {}
        self.log_defaults: dict[str, str] = {}
        self.override({})
        self.static = {name: self.value(name) for name in (*self.given, *self.log_defaults) if name not in COARSE}

    def override(self, changes: Mapping[str, str]) -> None:
        """Have `changes` win over what was given at start. Raises SettingsError, and then nothing has changed."""
        given = {**self.given, **changes}
        values = {name: known.default for name, known in KNOWN.items()}
        log_defaults: dict[str, str] = {}
        for name, value in given.items():
            if name in KNOWN:
                values[name] = checked(name, value, KNOWN[name])
            elif name in COARSE:
                fine, factor = COARSE[name]
                if fine not in given:
                    amount = int(checked(name, value, Known("int", "", -1)))
                    log_defaults.setdefault(fine, str(amount * factor if amount >= 0 else -1))
            elif name in TOPIC_SYNONYMS or name in ENGINE:
                log_defaults[name] = value
            else:
                raise SettingsError(_unknown(name))
        try:
            Defaults(log_defaults)
        except InvalidConfig as e:
            raise SettingsError(str(e)) from None
        self.values, self.log_defaults = values, log_defaults

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> Settings:
        """From `name=value` texts, as the command line has them; the last of a name wins."""
        given = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise SettingsError(f"expected name=value, got {pair!r}; example: --set num.partitions=4")
            given[name.strip()] = value.strip()
        return cls(given)

    def value(self, name: str) -> str:
        """The value in effect, as text; KeyError for an unknown name."""
        return self.values.get(name) or self.log_defaults.get(name) or self.default(name)

    @staticmethod
    def default(name: str) -> str:
        """The value of a setting that nobody gave."""
        return _definition(name).default

    @staticmethod
    def kind(name: str) -> str:
        """The type of a setting: int, long, double, boolean, string, list or password."""
        return _definition(name).kind

    def integer(self, name: str) -> int:
        """A number's value."""
        return int(self.values[name])

    def seconds(self, name: str) -> float:
        """A time in milliseconds, as seconds."""
        return int(self.values[name]) / 1000

    def names(self, name: str) -> list[str]:
        """The elements of a list."""
        return [part.strip() for part in self.values[name].split(",") if part.strip()]

    def boolean(self, name: str) -> bool:
        """A switch's value."""
        return self.values[name] == "true"


def _definition(name: str) -> Known | Setting:
    return KNOWN[name] if name in KNOWN else ENGINE[name] if name in ENGINE else SETTINGS[TOPIC_SYNONYMS[name]]


def checked(name: str, value: str, known: Known) -> str:
    """A value in the form that is kept. Raises SettingsError."""
    if known.only is not None and value != known.only:
        raise SettingsError(f"{name}={value}: on one machine it can only be {known.only}; leave it out")
    if known.kind == "boolean":
        if value.lower() not in ("true", "false"):
            raise SettingsError(f"{name}={value}: expected true or false")
        return value.lower()
    if known.kind in ("int", "long"):
        try:
            number = int(value)
        except ValueError:
            raise SettingsError(f"{name}={value}: expected a whole number") from None
        if not known.low <= number <= known.high:
            raise SettingsError(f"{name}={value}: expected a number from {known.low} to {known.high}")
        return str(number)
    if known.choices:
        given = [value] if known.kind == "string" else [part.strip() for part in value.split(",")]
        for part in given:
            if part not in known.choices:
                raise SettingsError(f"{name}={value}: expected {' or '.join(c for c in known.choices if c)}")
    if name == "ssl.key.password" and not value.startswith(("env:", "file:")):
        raise SettingsError(f"{name}: expected a reference to the secret, env:VARIABLE or file:PATH")
    return value


def _unknown(name: str) -> str:
    if name in INSTEAD:
        return f"{name} is not a setting here: use {INSTEAD[name]}"
    if name in SETTINGS:
        synonym = SETTINGS[name].synonym
        hint = f"; as the default of all topics it is called {synonym}" if synonym else ""
        return f"{name} is a topic's setting, not the broker's{hint}"
    names = [*KNOWN, *COARSE, *TOPIC_SYNONYMS, *ENGINE]
    near = difflib.get_close_matches(name, names, 1, 0.5)
    return f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else "; names are Apache Kafka's")
