"""Reading views: rows, Arrow and pandas with the right types, the newest windows first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError, Settings
from millstream.stores import read
from millstream.stores.postgresql import tables
from millstream.stores.reading import order

HOUR = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([], ""),
        ([("origin", 25), ("hour_start", 1184), ("hour_end", 1184)], ' order by "hour_start" desc, "origin"'),
        ([("origin", 25), ("day", 1082)], ' order by "day" desc, "origin"'),
        ([("b", 25), ("a", 20)], ' order by "b", "a"'),
        ([("seen", 1184), ("w_start", 1114), ("w_end", 1114)], ' order by "w_start" desc, "seen"'),
    ],
)
def test_the_newest_windows_come_first(key: list[tuple[str, int]], expected: str) -> None:
    assert order(key).as_string(None) == expected


@pytest.fixture
def settings(server: Server) -> Iterator[Settings]:
    settings = Settings(postgres=server.database("reading"))
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.totals (k text, hour_start timestamptz, n bigint, mean numeric, price"
            " numeric(10,2), j jsonb, y bytea, d date, ok boolean, i interval, UNIQUE NULLS NOT DISTINCT (k, hour_start))"
        )
        yield settings
        connection.execute("DROP SCHEMA shop CASCADE; DROP SCHEMA IF EXISTS millstream CASCADE")


@pytest.mark.system
def test_rows_arrow_and_pandas(settings: Settings) -> None:
    import pyarrow as pa

    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO shop.totals VALUES ('a', %s, 1, 5.4200000000000000000000001, 1.50, '{\"x\": [1]}', '\\x00ff',"
            " '2013-01-01', true, '1 hour'), (NULL, %s, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            (HOUR, HOUR + timedelta(hours=1)),
        )
    found = read(settings, "shop", "totals")
    assert found.key == ("k", "hour_start")
    newest, oldest = found.rows()
    assert newest["hour_start"] == HOUR + timedelta(hours=1) and newest["k"] is None
    assert oldest["price"] == Decimal("1.50") and oldest["j"] == {"x": [1]} and oldest["y"] == b"\0\xff"
    table = found.arrow()
    assert table.schema.field("hour_start").type == pa.timestamp("us", "UTC")
    assert table.schema.field("price").type == pa.decimal128(10, 2)
    assert table.column("mean").to_pylist() == [None, Decimal("5.4200000000000000000000001")]
    assert table.column("j").to_pylist() == [None, '{"x":[1]}']
    assert table.column("i").to_pylist() == [None, "1:00:00"]
    frame = found.pandas()
    assert list(frame["n"].dropna()) == [1] and list(frame.columns) == list(found.columns)
    assert read(settings, "shop", "totals", limit=1).rows() == [newest]


@pytest.mark.system
def test_an_empty_view_has_its_types(settings: Settings) -> None:
    import pyarrow as pa

    found = read(settings, "shop", "totals")
    assert found.rows() == [] and len(found.pandas()) == 0
    assert found.arrow().schema.field("n").type == pa.int64()


@pytest.mark.system
def test_what_is_not_there_is_named(settings: Settings) -> None:
    with pytest.raises(MillstreamError, match=r"there is no view shop\.total; the application 'shop' has totals"):
        read(settings, "shop", "total")
    with pytest.raises(MillstreamError, match="no store of views is known"):
        read(Settings(), "shop", "totals")
    assert [(one.name, one.owner, one.rows) for one in tables(settings, "shop", count=True)] == [("totals", None, 0)]
    assert tables(settings) == []


@pytest.mark.system
def test_rows_with_given_values(settings: Settings) -> None:
    with connect(settings.postgres, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO shop.totals (k, hour_start, n) VALUES ('a', %s, 1), ('b', %s, 2), (NULL, %s, 2)",
            (HOUR, HOUR, HOUR),
        )
    assert [row["n"] for row in read(settings, "shop", "totals", where={"k": "a"})] == [1]
    assert [row["k"] for row in read(settings, "shop", "totals", where={"k": None, "n": 2})] == [None]
    assert len(read(settings, "shop", "totals", where={"hour_start": HOUR, "n": 2})) == 2
    assert len(read(settings, "shop", "totals", where={"k": "'; drop table shop.totals"})) == 0
    with pytest.raises(MillstreamError, match=r"view shop\.totals has no column 'x'; it has k, hour_start, n, mean"):
        read(settings, "shop", "totals", where={"x": 1})
    with pytest.raises(MillstreamError, match=r"view shop\.totals cannot be read: .*bigint"):
        read(settings, "shop", "totals", where={"n": "many"})
