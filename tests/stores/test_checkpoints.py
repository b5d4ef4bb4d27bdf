"""Owners of views in a real PostgreSQL: two runs, a lost checkpoint, a view given away, kills in between, the earlier layout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError, Settings
from millstream.stores import checkpoints, failpoints, folder, postgresql
from millstream.stores.store import Claim

pytestmark = pytest.mark.system
ROWS = pa.table({"k": ["a", "b"], "n": [1, 2]})
OTHERS = pa.table({"k": ["z"], "n": [9]})


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Iterator[Settings]:
    """An empty store of views, and a data folder."""
    settings = Settings(data=tmp_path / "data", postgres=server.database("owners"))
    yield settings
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS app CASCADE; DROP SCHEMA IF EXISTS millstream CASCADE")


def begin(data: Path, query_id: uuid.UUID) -> str:
    """A checkpoint of the query "view" in a data folder."""
    where = folder.checkpoint(Settings(data=data), "app", "view")
    where.mkdir(parents=True)
    (where / "metadata").write_text(json.dumps({"id": str(query_id)}))
    return str(query_id)


def keep(settings: Settings, data: Path) -> postgresql.KeptTable:
    return postgresql.keep(settings, "view", ROWS.schema, ["k"], Claim.of(Settings(data=data), "app", "view"))


def rows(settings: Settings) -> list[Any]:
    with connect(settings.postgres) as connection:
        return connection.execute("SELECT * FROM app.view ORDER BY 1").fetchall()


def owner(settings: Settings) -> Any:
    with connect(settings.postgres) as connection:
        return checkpoints.owner(connection, "app", "view")


@pytest.fixture
def first(settings: Settings) -> str:
    """The id of a run that has written a batch and ended."""
    made = begin(settings.data, uuid.UUID(int=1))
    kept = keep(settings, settings.data)
    assert kept.apply(ROWS, query_id=made, batch_id=0) == 2
    kept.close()
    return made


def test_a_second_run_elsewhere_empties_nothing(settings: Settings, first: str, tmp_path: Path) -> None:
    before = owner(settings)
    assert before.place == folder.place(settings.data) and before.since == before.at and not before.active
    other = begin(tmp_path / "other", uuid.UUID(int=2))
    with pytest.raises(MillstreamError, match=r"app\.view belongs to another run.*views rebuild app\.view --execute"):
        keep(settings, tmp_path / "other")
    target = postgresql.keep(settings, "view", ROWS.schema, ["k"], Claim.of(settings, "app", "view"))._target
    with connect(settings.postgres, autocommit=True) as connection, pytest.raises(MillstreamError, match="another run"):
        claim = Claim.of(tmp_path / "other", "app", "view")
        postgresql.apply(connection, target, OTHERS, claim=claim, batch_id=0)
    assert rows(settings) == [("a", 1), ("b", 2)] and owner(settings) == before and other


def test_whether_the_owner_is_connected_is_seen(settings: Settings) -> None:
    made = begin(settings.data, uuid.UUID(int=1))
    kept = keep(settings, settings.data)
    kept.apply(ROWS, query_id=made, batch_id=0)
    assert owner(settings).active
    for change in (postgresql.rebuild, postgresql.drop):
        with pytest.raises(MillstreamError, match=r"being written.*End that run first"):
            change(settings, "app", "view")
    kept.close()
    wait = [owner(settings).active for _ in range(50)]
    assert not wait[-1]


def test_a_lost_checkpoint_changes_no_table_either(settings: Settings, first: str) -> None:
    folder.checkpoint(settings, "app", "view").rename(settings.data / "lost")
    wider = pa.table({"k": ["a"], "n": [1], "extra": ["x"]})
    with pytest.raises(MillstreamError, match="a checkpoint that is gone from here"):
        postgresql.keep(settings, "view", wider.schema, ["k"], Claim.of(settings, "app", "view"))
    with connect(settings.postgres) as connection:
        assert connection.execute("SELECT * FROM app.view LIMIT 0").description is not None
        assert [c.name for c in connection.execute("SELECT * FROM app.view LIMIT 0").description or ()] == ["k", "n"]


def test_a_view_is_given_to_the_next_run(settings: Settings, first: str, tmp_path: Path) -> None:
    postgresql.rebuild(settings, "app", "view")
    assert owner(settings).rebuild and rows(settings) == [("a", 1), ("b", 2)]
    with pytest.raises(MillstreamError, match="would go on in the middle"):
        keep(settings, settings.data)  # its checkpoint has not been put aside
    other = begin(tmp_path / "other", uuid.UUID(int=2))
    kept = keep(settings, tmp_path / "other")
    assert rows(settings) == [("a", 1), ("b", 2)]  # readers see the old rows until the first batch
    assert kept.apply(OTHERS, query_id=other, batch_id=0) == 1
    kept.close()
    assert rows(settings) == [("z", 9)]
    assert (owner(settings).query_id, owner(settings).rebuild) == (other, False)
    with pytest.raises(MillstreamError, match="belongs to another run"):
        keep(settings, settings.data)  # the first one comes back


def test_a_query_that_the_user_moved_begins_again(settings: Settings, first: str) -> None:
    assert folder.put_aside(settings.data, "app", "view") is not None
    again = begin(settings.data, uuid.UUID(int=2))
    kept = keep(settings, settings.data)
    assert kept.apply(OTHERS, query_id=again, batch_id=0) == 1
    kept.close()
    assert rows(settings) == [("z", 9)]


def test_a_dropped_view_is_gone_with_its_owner(settings: Settings, first: str) -> None:
    postgresql.drop(settings, "app", "view")
    assert owner(settings) is None and postgresql.tables(settings, "app") == []
    with pytest.raises(MillstreamError, match=r"there is no view app\.view"):
        postgresql.drop(settings, "app", "view")
    kept = keep(settings, settings.data)
    with pytest.raises(MillstreamError, match="lacks what the batches before number 1 wrote"):
        kept.apply(ROWS, query_id=first, batch_id=1)  # its checkpoint was left where it is


def test_tables_of_others_are_not_touched(settings: Settings) -> None:
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app; CREATE TABLE app.view (k text PRIMARY KEY, n bigint)")
        connection.execute("INSERT INTO app.view VALUES ('mine', 1)")
    with pytest.raises(MillstreamError, match="no query of Millstream's has written"):
        keep(settings, settings.data)
    with pytest.raises(MillstreamError, match="no query of Millstream's has written"):
        postgresql.drop(settings, "app", "view")
    assert rows(settings) == [("mine", 1)]


def test_a_store_of_an_earlier_version_is_brought_up_and_its_views_stay_with_their_checkpoints(
    settings: Settings, tmp_path: Path
) -> None:
    made = begin(settings.data, uuid.UUID(int=1))
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA millstream; CREATE TABLE millstream.checkpoints (app text, query text, query_id uuid NOT NULL,"
            " batch_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (app, query));"
            " CREATE SCHEMA app; CREATE TABLE app.view (k text, n bigint, UNIQUE NULLS NOT DISTINCT (k));"
            " INSERT INTO app.view VALUES ('a', 1)"
        )
        connection.execute("INSERT INTO millstream.checkpoints VALUES ('app', 'view', %s, 41)", [made])
        old = checkpoints.owner(connection, "app", "view")  # read before it is brought up, too
        assert old is not None and (old.query_id, old.batch_id, old.place, old.active) == (made, 41, None, False)
    begin(tmp_path / "other", uuid.UUID(int=2))
    with pytest.raises(MillstreamError, match="belongs to another run"):
        keep(settings, tmp_path / "other")
    kept = keep(settings, settings.data)
    assert kept.apply(ROWS, query_id=made, batch_id=41) is None
    assert kept.apply(OTHERS, query_id=made, batch_id=42) == 1
    kept.close()
    assert rows(settings) == [("a", 1), ("z", 9)]
    assert owner(settings).place == folder.place(settings.data) and owner(settings).since is not None


CHILD = """
import json, sys
from pathlib import Path
import pyarrow as pa
from millstream.settings import Settings
from millstream.stores import postgresql
from millstream.stores.store import Claim
conninfo, data, query_id = sys.argv[1:]
rows = pa.table({"k": ["z"], "n": [9]})
claim = Claim.of(Settings(data=Path(data)), "app", "view")
kept = postgresql.keep(Settings(postgres=conninfo), "view", rows.schema, ["k"], claim)
print(json.dumps(kept.apply(rows, query_id=query_id, batch_id=0)))
"""


@pytest.mark.fault
@pytest.mark.parametrize("point", failpoints.TABLES)
def test_a_take_over_that_is_killed_happens_wholly_or_not_at_all(
    settings: Settings, first: str, tmp_path: Path, point: str
) -> None:
    postgresql.rebuild(settings, "app", "view")
    other = begin(tmp_path / "other", uuid.UUID(int=2))
    child: Callable[[str], subprocess.CompletedProcess[str]] = lambda failpoint: subprocess.run(  # noqa: E731
        [sys.executable, "-c", CHILD, settings.postgres, str(tmp_path / "other"), other],
        env=os.environ | {failpoints.VARIABLE: failpoint},
        capture_output=True,
        text=True,
    )
    killed = child(point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = point == failpoints.COMMITTED
    assert rows(settings) == ([("z", 9)] if done else [("a", 1), ("b", 2)])
    assert owner(settings).rebuild is not done
    again = child("")
    assert again.stdout.strip() == ("null" if done else "1"), again.stderr
    assert rows(settings) == [("z", 9)] and owner(settings).query_id == other


def test_a_role_that_may_not_is_named(settings: Settings) -> None:
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN")
    weak = psycopg.conninfo.make_conninfo(settings.postgres, options="-c role=nobody_much")
    with pytest.raises(MillstreamError, match="may not keep views"):
        keep(Settings(postgres=weak), settings.data)
