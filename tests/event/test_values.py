"""Events are checked when they are made, and their classes when they are declared."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.event import Event, decode, encode
from millstream.settings import MillstreamError

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Item(Event):
    sku: str
    count: int


class Place(msgspec.Struct):
    latitude: float


class Order(Event):
    user: str
    at: datetime
    count: int | None
    price: float | None
    paid: bool | None
    total: Decimal | None
    day: date | None
    photo: bytes | None
    tags: list[str] | None
    stock: dict[str, int] | None
    items: list[Item] | None
    place: Place | None
    days: dict[str, list[date | None]] | None
    extra: Any | None
    parent: "Order | None"


GOOD = {
    "user": "a",
    "at": AT,
    "count": 2**63 - 1,
    "price": 1,
    "paid": False,
    "total": Decimal("12345678901234567890.123456789012345678000"),
    "day": date(2026, 1, 1),
    "photo": b"x",
    "tags": ["a", ""],
    "stock": {"a": 1},
    "items": [Item(sku="s", count=1)],
    "place": Place(1.5),
    "days": {"x": [date(2026, 1, 1), None]},
    "extra": {"a": [1, None, {"b": 1.5}]},
    "parent": Order(user="b", at=AT),
}
WRONG = [
    ({"user": 5}, "Order.user: expected str, got 5 (int)."),
    ({"user": None}, "Order.user: expected str, got None (NoneType)."),
    ({"at": "yesterday"}, "Order.at: expected a datetime with a time zone, got 'yesterday' (str)."),
    ({"at": datetime(2026, 1, 1)}, "Order.at: expected a datetime with a time zone, got datetime"),
    ({"count": True}, "Order.count: expected an int of 64 bits or None, got True (bool)."),
    ({"count": 2**63}, "Order.count: expected an int of 64 bits or None"),
    ({"price": float("nan")}, "Order.price: expected a finite float"),
    ({"price": 10**400}, "Order.price: expected a float or None"),
    ({"paid": 1}, "Order.paid: expected bool or None, got 1 (int)."),
    ({"total": 1.5}, "Order.total: expected a Decimal"),
    ({"total": Decimal("1e25")}, "at most 20 digits and 18 decimals"),
    ({"total": Decimal("1e-19")}, "at most 20 digits and 18 decimals"),
    ({"total": Decimal("Infinity")}, "Order.total: expected a Decimal"),
    ({"day": AT}, "Order.day: expected a date or None"),
    ({"photo": bytearray(b"x")}, "Order.photo: expected bytes or None"),
    ({"tags": "abc"}, "Order.tags: expected a list or None, got 'abc' (str)."),
    ({"tags": ["a", 1]}, "Order.tags[1]: expected str, got 1 (int)."),
    ({"stock": {"k": "v"}}, "Order.stock['k']: expected an int of 64 bits, got 'v' (str)."),
    ({"stock": {1: 1}}, "Order.stock (a key): expected str, got 1 (int)."),
    ({"items": [{"sku": "s"}]}, "Order.items[0]: expected Item, got {'sku': 's'} (dict)."),
    ({"place": Place("north")}, "Order.place.latitude: expected a float, got 'north' (str)."),
    ({"days": {"x": [AT]}}, "Order.days['x'][0]: expected a date or None"),
    ({"extra": {"a": [{1, 2}]}}, "Order.extra['a'][0]: expected a JSON value"),
    ({"parent": Item(sku="s", count=1)}, "Order.parent: expected Order or None"),
]


def test_what_is_right_is_taken_and_comes_back_as_its_types():
    order = Order(**GOOD)
    back = decode(Order, encode(order))
    assert back == order
    assert type(back.items[0]) is Item and type(back.place) is Place and type(back.parent) is Order
    assert type(back.days["x"][0]) is date and type(back.total) is Decimal


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_a_wrong_value_names_field_type_and_value(changed, message):
    with pytest.raises(MillstreamError) as caught:
        Order(**(GOOD | changed))
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_numpy_and_pandas_are_told_what_to_use():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(MillstreamError, match="to_pydatetime"):
        Order(user="a", at=pandas.Timestamp("2026-01-01", tz="UTC"))
    with pytest.raises(MillstreamError, match=r"expected a float or None, got .*1\.5"):
        Order(user="a", at=AT, price=pandas.Series([1.5])[0])


REFUSED = [
    ("set[int]", "use list"),
    ("tuple[int, ...]", "use list"),
    ("list[frozenset[str]]", "use list"),
    ("complex", "use two fields of float"),
    ("time", "use str"),
    ("timedelta", "use float, in seconds"),
    ("UUID", "use str"),
    ("Literal['a']", "use str"),
    ("dict[int, str]", r"expected dict\[str, …\]"),
    ("int | str", r"expected one type, optionally \| None"),
    ("list[int | str]", "expected one type"),
    ("timezone", "there are str, int"),
    ("None", "there are str, int"),
    ("Holder", "use list"),
]


class Holder(msgspec.Struct):
    inside: set[int]


@pytest.mark.parametrize(("kind", "message"), REFUSED)
def test_a_type_that_no_field_can_have_is_refused_by_the_class(kind, message):
    names = {"ms": ms, "Holder": Holder}
    source = (
        "from datetime import time, timedelta, timezone\nfrom typing import Literal\nfrom uuid import UUID\n"
        f"class Bad(ms.Event):\n    field: {kind}\n"
    )
    with pytest.raises(MillstreamError, match=rf"^Bad\.field.*{message}"):
        exec(source, names)


def test_an_undefined_name_is_named():
    class Late(Event):
        other: "Nowhere"  # noqa: F821

    with pytest.raises(MillstreamError, match="the annotation 'Nowhere' is not defined"):
        Late(other=1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text(max_size=4) | st.binary(max_size=4)
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=1)))) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, max_size=3))
def test_whatever_is_taken_comes_back_equal(values):
    try:
        order = Order(**(GOOD | values))
    except MillstreamError as error:
        assert str(error).startswith("Order.")
        return
    assert decode(Order, encode(order)) == order
