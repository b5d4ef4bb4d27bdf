"""Decoding in Spark against `event.decode`: the same documents are accepted, with equal values; reasons name the field."""

import base64
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millstream.app.inputs import Topic
from millstream.event import Event, decode, encode

pytestmark = pytest.mark.system

# Each example is a job of Spark's over many documents: a failure names its document, so shrinking is not worth its jobs.
JOBS = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
    "database": None,
}


class Everything(Event, kw_only=True):
    text: str
    number: int
    real: float
    flag: bool
    at: datetime
    day: date
    amount: Decimal
    raw: bytes
    things: list
    maybe_text: str | None = None
    maybe_number: int | None = None
    maybe_at: datetime | None = None
    maybe_raw: bytes | None = None


TOPIC = Topic("everything", Everything)
GOOD = {
    "text": "x",
    "number": 5,
    "real": 1.5,
    "flag": True,
    "at": "2013-01-01T05:15:00.25+01:00",
    "day": "2013-01-31",
    "amount": "12.50",
    "raw": "AAE=",
    "things": [1, "a", None, {"b": 2.5}],
}


def messages(spark, values, topic="everything"):
    rows = [
        (b"key", v if v is None else bytearray(v), topic, 0, i, datetime(2026, 1, 1, tzinfo=UTC))
        for i, v in enumerate(values)
    ]
    return spark.createDataFrame(
        rows, "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    ).coalesce(1)


def spark_says(spark, values, topic=TOPIC):
    """Return the accepted rows and the rejected ones' reasons, by index."""
    from millstream.spark.inputs.json import events, malformed

    frame = messages(spark, values, topic.name)
    accepted = {r["_origin"]["offset"]: r for r in events(frame, topic).toArrow().to_pylist()}
    rejected = {r.offset: r.reason for r in malformed(frame, [topic]).select("offset", "reason").collect()}
    return accepted, rejected


def msgspec_says(value):
    try:
        return decode(Everything, value)
    except ValueError:
        return None


def same(event, row):
    for name in Everything.__struct_fields__:
        expected, found = getattr(event, name), row[name]
        if name == "things":
            found = json.loads(found)
        if isinstance(expected, datetime):
            expected, found = expected.astimezone(UTC), found.astimezone(UTC)
        assert found == expected, name


def compare(spark, values):
    accepted, rejected = spark_says(spark, values)
    assert accepted.keys().isdisjoint(rejected)
    assert accepted.keys() | rejected.keys() == set(range(len(values)))
    said = [msgspec_says(value) for value in values]
    unequal = [(v, rejected.get(i)) for i, v in enumerate(values) if (said[i] is not None) != (i in accepted)]
    assert not unequal
    for i, event in enumerate(said):
        if event is not None:
            same(event, accepted[i])


texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)
naive = st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29))
zones = st.integers(-18 * 60 + 1, 18 * 60 - 1).map(lambda m: timezone(timedelta(minutes=m)))
times = st.builds(lambda t, zone: t.replace(tzinfo=zone).isoformat(), naive, zones)
amounts = st.decimals(-(10**15), 10**15, places=9)
longs = st.integers(-(2**63), 2**63 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.one_of(st.none(), st.booleans(), longs, st.integers(-100, 100), texts, st.integers(0, 9).map(float))
junk = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=5
)
VALUES = {
    "text": texts,
    "number": longs,
    "real": reals | st.integers(-(10**15), 10**15),
    "flag": st.booleans(),
    "at": times,
    "day": st.dates().map(str),
    "amount": amounts.map(str),
    "raw": st.binary(max_size=12).map(lambda b: base64.b64encode(b).decode()),
    "things": st.lists(st.none() | st.booleans() | st.integers(-9, 9) | texts, max_size=3),
}


@st.composite
def documents(draw):
    """A document that is right, or wrong in at most two places."""
    document = {name: draw(values) for name, values in VALUES.items()}
    for name, values in VALUES.items():
        if f"maybe_{name}" in Everything.__struct_fields__ and draw(st.booleans()):
            document[f"maybe_{name}"] = draw(st.none() | values)
    for name in draw(st.lists(st.sampled_from([*document, "unknown"]), max_size=2)):
        # A list's elements and a decimal's digits are not Spark's to check: see `test_what_only_msgspec_accepts`.
        wrong = junk if "things" not in name and "amount" not in name else st.none()
        if draw(st.booleans()):
            document.pop(name, None)
        else:
            document[name] = draw(wrong | texts) if "things" not in name else None
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode()


@settings(max_examples=8, **JOBS)
@given(values=st.lists(documents(), min_size=25, max_size=40))
def test_the_same_documents_with_equal_values(spark, values):
    compare(spark, values)


@settings(max_examples=4, **JOBS)
@given(data=st.data())
def test_damaged_bytes(spark, data):
    """Bytes cut, doubled, overwritten or followed by something."""
    whole = json.dumps(GOOD).encode()
    values = []
    for _ in range(40):
        at = data.draw(st.integers(0, len(whole)))
        how = data.draw(st.integers(0, 3))
        if how == 0:
            values.append(whole[:at])
        elif how == 1:
            values.append(whole[:at] + data.draw(st.binary(min_size=1, max_size=2)) + whole[at + 1 :])
        elif how == 2:
            values.append(whole + data.draw(st.sampled_from([b" x", b"\n" + whole, b"}", b"\x00", b"[]", b"\t\r\n "])))
        else:
            values.append(data.draw(st.sampled_from([b"", b" ", b"[]", b"[" + whole + b"]"])) + whole[:at][::-1])
    compare(spark, values)


@settings(max_examples=2, **JOBS)
@given(
    events=st.lists(
        st.builds(
            Everything,
            text=texts,
            number=longs,
            real=reals,
            flag=st.booleans(),
            at=naive.map(lambda t: t.replace(tzinfo=UTC)),
            day=st.dates(),
            amount=amounts,
            raw=st.binary(max_size=12),
            things=st.just([]),
            maybe_text=st.none() | texts,
        ),
        min_size=20,
        max_size=30,
    )
)
def test_what_we_encode_comes_back(spark, events):
    accepted, rejected = spark_says(spark, [encode(e) for e in events])
    assert not rejected
    for i, event in enumerate(events):
        same(event, accepted[i])


def altered(**changes):
    return json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not ...}).encode()


REASONS = [
    (altered(text=5), "field 'text': expected a string, got 5"),
    (altered(text=None), "field 'text': expected a string, got null"),
    (altered(text=...), "field 'text' is missing"),
    (altered(number="5"), """field 'number': expected a whole number of 64 bits, got "5\""""),
    (altered(number=2**63), "field 'number': expected a whole number of 64 bits, got 9223372036854775808"),
    (altered(number=5.5), "field 'number': expected a whole number of 64 bits, got 5.5"),
    (altered(real="1"), """field 'real': expected a number, got "1\""""),
    (altered(flag=1), "field 'flag': expected true or false, got 1"),
    (altered(at="2013-01-01T05:15:00"), """field 'at': the time has no zone, got "2013-01-01T05:15:00\""""),
    (altered(at="soon"), """field 'at': expected a time with its zone (2013-01-01T05:15:00Z), got "soon\""""),
    (altered(at=5), "field 'at': expected a time with its zone (2013-01-01T05:15:00Z), got 5"),
    (altered(day="2013-02-30"), """field 'day': expected a date (2013-01-31), got "2013-02-30\""""),
    (altered(raw="?"), """field 'raw': expected a string of base64, got "?\""""),
    (
        altered(amount="much"),
        "field 'amount': expected a decimal number of at most 20 digits and 18 decimals, got \"much\"",
    ),
    (altered(maybe_number=True), "field 'maybe_number': expected a whole number of 64 bits or null, got true"),
    (altered(things=None), "field 'things': expected a JSON value, got null"),
    (b'{"text": "\xff"}', "the value is not UTF-8"),
    (b'{"text": ', "the value is not JSON"),
    (b"", "the value is not JSON"),
    (b"[1]", "expected a JSON object, got [1]"),
    (b"null", "expected a JSON object, got null"),
    (altered() + altered(), "the value is not one JSON object alone: something follows it"),
    (altered(text=["y" * 200]), "field 'text': expected a string, got [\"" + "y" * 78 + "…"),
]


def test_reasons(spark):
    accepted, rejected = spark_says(spark, [value for value, _ in REASONS])
    assert not accepted
    assert [rejected[i] for i in range(len(REASONS))] == [reason for _, reason in REASONS]


def test_a_tombstone_is_neither_event_nor_mistake(spark):
    assert spark_says(spark, [None, altered()])[0].keys() == {1}
    assert spark_says(spark, [None])[1] == {}


def test_what_does_not_fit_spark(spark):
    """Spark's numbers have bounds, which events have too; offsets that no place has are for Spark to refuse."""
    numbers = [
        altered(number=2**63),
        altered(amount="1e30"),
        altered(amount="0." + "1" * 19),
        altered(amount="12E-19"),
    ]
    offset = altered(at="2013-01-01T05:15:00+19:00")
    accepted, _ = spark_says(spark, [*numbers, offset])
    assert not accepted
    assert not any(msgspec_says(v) for v in numbers)
    assert msgspec_says(offset)


def test_each_topic_has_its_own_schema(spark):
    from millstream.spark.inputs.json import malformed

    class Other(Event):
        name: str

    both = messages(spark, [b'{"name": "x"}'], "other").union(messages(spark, [b'{"name": "x"}']))
    found = malformed(both, [TOPIC, Topic("other", Other)]).collect()
    assert [(r.topic, r.reason) for r in found] == [("everything", "field 'text' is missing")]


def test_events_carry_their_origin_and_declared_types(spark):
    from millstream.spark.inputs.json import ORIGIN, events, schema

    frame = events(messages(spark, [altered()]), TOPIC)
    assert frame.columns == [*Everything.__struct_fields__, ORIGIN]
    assert [f.dataType for f in frame.schema.fields[:-1]] == [f.dataType for f in schema(Everything).fields]
    assert frame.collect()[0]._origin.asDict() == {
        "topic": "everything",
        "partition": 0,
        "offset": 0,
        "timestamp": frame.collect()[0]._origin.timestamp,
    }


def test_the_parser_runs_once(spark):
    """Neither our filter nor the user's may be pushed below the parser, which would then run twice."""
    from millstream.spark.inputs.json import events

    frame = events(messages(spark, [altered()]), TOPIC).where("real > 1").select("text")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_json") == 1
