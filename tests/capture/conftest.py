"""One PostgreSQL server and one broker for the room's tests; a database and an application name for each test."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from millstream.app.inputs import Table
from millstream.app.sources import PostgresTable
from millstream.capture.postgres.slot import slot_name
from millstream.client.connect import admin
from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from millstream.settings import Kafka
from tests import servers
from tests.brokers import fresh, running_broker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An embedded PostgreSQL."""
    with Server(tmp_path_factory.mktemp("postgres") / "server") as running:
        yield running


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker."""
    with running_broker(tmp_path_factory.mktemp("broker") / "log") as address:
        yield address


@dataclass
class Source:
    """A source database with what a test needs around it."""

    app: str
    conninfo: str
    kafka: Kafka
    folder: Path
    sql: psycopg.Connection[Any]
    running: list[servers.CaptureProcess] = field(default_factory=list)

    def table(self, name: str, table: str = "") -> Table:
        """A captured table; topics carry the test's name, as the broker is shared."""
        return Table(self.topic(name), PostgresTable("ops", table or name))

    def topic(self, name: str) -> str:
        """The topic of a table."""
        return f"{self.app}.{name}"

    def capture(
        self, *names: str, failpoint: str = "", state: str = "state", held: Mapping[str, float] | None = None
    ) -> servers.CaptureProcess:
        """Start a capture of the tables in a process."""
        started = servers.CaptureProcess(
            self.app, self.conninfo, [self.table(n) for n in names], self.kafka, self.folder / state, failpoint, held
        )
        self.running.append(started)
        return started

    def rows(self, table: str, key: str = "id") -> dict[str, Any]:
        """The rows of a source table as the topic has them, by the key's JSON."""
        query = f"SELECT json_build_object('{key}', {key})::text, to_json(t)::text FROM {table} t"
        return {json.dumps(json.loads(k)): json.loads(v) for k, v in self.sql.execute(query).fetchall()}

    def slot(self) -> str:
        """The name of the slot and publication."""
        return slot_name(self.app, "ops")

    def slot_exists(self) -> bool:
        """Whether the capture has made its slot."""
        query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        return self.sql.execute(query, [self.slot()]).fetchone() is not None

    def connect(self) -> None:
        """Connect again, after the server was restarted."""
        self.sql = connect(self.conninfo, autocommit=True)

    def confirmed(self) -> int:
        """How far the slot is."""
        row = self.sql.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", [self.slot()]
        ).fetchone()
        return int(row[0]) if row and row[0] else 0

    def position(self) -> int:
        """How far the source's log is."""
        row = self.sql.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
        assert row is not None
        return int(row[0])

    def settled(self, seconds: float = 60) -> None:
        """Wait until everything that was committed by now is in the topics."""
        self.sql.execute("SELECT pg_logical_emit_message(true, 'test', '', true)")  # flushes the log
        now = self.position()
        servers.wait_for(lambda: self.confirmed() >= now, "the capture catches up", seconds)

    def latest(self, name: str) -> dict[str, Any]:
        """The rows that a topic holds."""
        return servers.latest(self.kafka, self.topic(name))

    def messages(self, name: str) -> list[tuple[Any, Any, int, int]]:
        """Everything in a topic."""
        return servers.messages(self.kafka, self.topic(name))


def settings(kafka: Kafka, topic: str, changes: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in changes.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for done in admin(kafka).incremental_alter_configs([resource]).values():
        done.result(30)


@contextmanager
def database(server: Server, kafka: Kafka, folder: Path, test: str) -> Iterator[Source]:
    """A database of the test's own; ends what the test started and drops the slot, so that no log is kept for it."""
    app = fresh(re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[-50:])
    conninfo = server.database(app)
    made = Source(app, conninfo, kafka, folder, connect(conninfo, autocommit=True))
    try:
        yield made
    finally:
        for process in made.running:
            process.__exit__()
        query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
        servers.wait_for(lambda: not made.sql.execute(query, [made.slot()]).fetchone(), "the slot is free")
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        made.sql.execute(query, [made.slot()])
        made.sql.close()


@pytest.fixture
def source(server: Server, kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """See `database`."""
    with database(server, kafka, tmp_path, request.node.name) as made:
        yield made


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL that the tests of a module may crash."""
    with Server(tmp_path_factory.mktemp("fragile") / "server") as running:
        yield running


def crash(server: Server) -> None:
    """End the server as `restart -m immediate` does: without a checkpoint, so that slots fall back to what was saved."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGQUIT)
    assert server.wait(20)
    server.stop()
    server.start()
