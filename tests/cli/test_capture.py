"""`millstream capture` on a real log and a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from millstream.cli import main
from millstream.monitor.status import Reporter
from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from millstream.settings import Kafka
from tests.brokers import fresh, running_broker

pytestmark = pytest.mark.system
Run = Callable[..., str]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def run(kafka: Kafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Run:
    """Run the command in this process; gives what it printed."""
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("MILLSTREAM_KAFKA", kafka.bootstrap)

    def run(*arguments: str, fails: bool = False) -> str:
        with pytest.raises(SystemExit) as end:
            main(["capture", *arguments])
        printed = capsys.readouterr()
        assert (end.value.code or 0) == int(fails), printed.err
        return printed.err if fails else printed.out

    return run


def test_what_captures_say(run: Run, kafka: Kafka) -> None:
    app = fresh("shop")
    tables = {
        "planes": {"state": "streaming", "rows": 3, "total": 3, "reason": ""},
        "bad": {"state": "stopped", "rows": 0, "total": 0, "reason": "public.bad has no primary key: ALTER TABLE"},
    }
    assert json.loads(run("--json", "--app", app)) == []
    assert "has ever reported" in run("show", "ops", fails=True)
    with Reporter(kafka, app) as reporter:
        reporter.report("capture", "ops", state="streaming", tables=tables, lag_bytes=512, lag_seconds=1.5)
        reporter.report("capture", "new", state="snapshot", lag_problem="does not answer")
    found = {facts["name"]: facts for facts in json.loads(run("list", "--json", "--app", app))}
    assert found["ops"]["tables"] == tables and found["ops"]["lag_seconds"] == 1.5
    printed = run("--app", app)
    assert "ALTER TABLE" in printed and "stopped" in printed and "does not answer" in printed and "512" in printed
    assert "lag_seconds" in run("ops", "--app", app)


def test_a_capture_is_given_up(
    run: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "MILLSTREAM_SOURCE_OPS" in run("drop", "ops", "--app", "shop", fails=True)
    assert "--app" in run("drop", "ops", fails=True)
    with Server(tmp_path_factory.mktemp("postgres") / "server") as server:
        conninfo = server.database("ops")
        monkeypatch.setenv("MILLSTREAM_SOURCE_OPS", conninfo)
        assert "nothing is to be dropped" in run("drop", "ops", "--app", "shop", fails=True)
        with connect(conninfo, autocommit=True) as sql:
            sql.execute("CREATE PUBLICATION millstream_shop_ops")
            sql.execute("SELECT pg_create_logical_replication_slot('millstream_shop_ops', 'pgoutput')")
            assert "would be dropped" in run("drop", "ops", "--app", "shop")
            query = "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication)"
            assert sql.execute(query).fetchone() == (1, 1)
            dropped = json.loads(run("drop", "ops", "--app", "shop", "--execute", "--json"))
            assert dropped == {"slot": "millstream_shop_ops", "publication": "millstream_shop_ops", "done": True}
            assert sql.execute(query).fetchone() == (0, 0)
