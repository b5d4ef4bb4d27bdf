"""What of a view becomes its key, its time, its lines and its numbers."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from millstream.serve import columns
from millstream.serve.columns import MAX_SERIES, MAX_TIMES, chart, plain, window

TEXT, INT8, FLOAT8, TIMESTAMPTZ, NUMERIC = 25, 20, 701, 1184, 1700
DESCRIBED = [
    ("origin", TEXT), ("hour_start", TIMESTAMPTZ), ("hour_end", TIMESTAMPTZ),
    ("flights", INT8), ("mean_delay", FLOAT8), ("p90_delay", NUMERIC),
]  # fmt: skip
HOUR = timedelta(hours=1)
BEGIN = datetime(2013, 1, 1, 10, tzinfo=UTC)


def row(origin, hours, flights=1, mean=0.0, p90=0):
    return (origin, BEGIN + hours * HOUR, BEGIN + (hours + 1) * HOUR, flights, mean, Decimal(p90))


def test_a_window_of_the_key_is_its_start_and_end():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    assert [(c.name, c.kind, c.key) for c in of] == [
        ("origin", "text", True), ("hour_start", "time", True), ("hour_end", "time", True),
        ("flights", "integer", False), ("mean_delay", "number", False), ("p90_delay", "number", False),
    ]  # fmt: skip
    assert window(of) == ("hour_start", "hour_end")


def test_a_plain_time_in_the_key_is_a_time_too():
    of = columns.columns([("at", TIMESTAMPTZ), ("n", INT8)], ["at"])
    assert window(of) == ("at", None)
    drawn = chart(of, [(BEGIN, 3), (BEGIN + HOUR, 4)])
    assert (drawn.step, [s.label for s in drawn.series], drawn.series[0].values) == (None, ["n"], [[3.0, 4.0]])


def test_a_line_per_key_and_a_fraction_before_a_count():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    drawn = chart(of, [row("JFK", 1, 5, 12.5, 40), row("EWR", 0, 3, 2.0, 9), row("JFK", 0, 4, None, 8)])
    assert drawn.columns[drawn.chosen] == "mean_delay"
    assert drawn.times == [BEGIN.timestamp(), (BEGIN + HOUR).timestamp()]
    assert [s.label for s in drawn.series] == ["EWR", "JFK"]
    assert drawn.series[0].values == [[3.0, None], [2.0, None], [9.0, None]]
    assert drawn.series[1].values == [[4.0, 5.0], [None, 12.5], [8.0, 40.0]]
    assert (drawn.step, drawn.left_out) == (3600, 0)


def test_the_lines_with_the_largest_numbers_stay_and_the_rest_is_counted():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    drawn = chart(of, [row(f"A{i:02}", 0, 1, float(i)) for i in range(30)])
    assert [s.label for s in drawn.series] == [f"A{i}" for i in range(30 - MAX_SERIES, 30)]
    assert drawn.left_out == 30 - MAX_SERIES


def test_the_newest_windows_are_drawn():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    drawn = chart(of, [row("OLD", 0), *(row("JFK", h) for h in range(1, 2 * MAX_TIMES))])
    assert len(drawn.times) == MAX_TIMES
    assert drawn.times[-1] == (BEGIN + (2 * MAX_TIMES - 1) * HOUR).timestamp()
    assert ([s.label for s in drawn.series], drawn.left_out) == (["JFK"], 0)


def test_several_keys_and_missing_ones_make_one_label():
    of = columns.columns([("a", TEXT), ("b", INT8), ("at", TIMESTAMPTZ), ("n", INT8)], ["a", "b", "at"])
    assert [s.label for s in chart(of, [(None, 2, BEGIN, 1), ("x", 1, BEGIN, 1)]).series] == ["– · 2", "x · 1"]


def test_what_cannot_be_drawn_is_not_a_chart():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    assert chart(of, []) is None
    assert chart(columns.columns([("a", TEXT), ("n", INT8)], ["a"]), [("x", 1)]) is None
    assert chart(columns.columns([("at", TIMESTAMPTZ), ("t", TEXT)], ["at"]), [(BEGIN, "x")]) is None


def test_infinity_and_nan_are_gaps():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    drawn = chart(of, [row("JFK", 0, 1, float("nan")), row("JFK", 1, 1, float("inf"))])
    assert drawn.series[0].values[1] == [None, None]


def test_database_values_become_json():
    assert plain(Decimal("1.5")) == 1.5
    assert plain(BEGIN) == "2013-01-01T10:00:00+00:00"
    assert plain(date(2013, 1, 2)) == "2013-01-02"
    assert plain(b"\x01\xff") == "01ff"
    assert plain({"a": [Decimal(1), None, True]}) == {"a": [1.0, None, True]}
    assert plain(float("nan")) == "nan"


def test_a_gap_in_time_is_a_gap_in_the_lines():
    of = columns.columns(DESCRIBED, ["origin", "hour"])
    drawn = chart(of, [row("EWR", hours, mean=1.5) for hours in (0, 1, 5, 6)])
    begin = BEGIN.timestamp()
    assert [round((t - begin) / 3600, 2) for t in drawn.times] == [0, 1, 2, 5, 6]
    assert drawn.series[0].values[drawn.chosen] == [1.5, 1.5, None, 1.5, 1.5]
