"""The right answer, computed in one go from the CSV files with pandas: what the stream's results are held against.

Nothing here uses the replay's reading of the files, the application's functions, or Spark, so that a mistake in one of them
cannot hide in all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.demo.data import FIRST_DAY, folder

if TYPE_CHECKING:
    import pandas as pd

_DAY = ["year", "month", "day"]
_FLIGHT = ["carrier", "flight", "origin"]
VERY_LATE = 120  # minutes: what the application's alert calls very late

FlightKey = tuple[
    str, int, str, datetime
]  # carrier, flight, origin, scheduled departure (UTC): no two flights share it


@dataclass(frozen=True)
class Hour:
    """The departures of one origin in one hour. delays: minutes, ascending."""

    flights: int
    mean_delay: float
    p90_delay: float
    delays: tuple[float, ...]


@dataclass(frozen=True)
class Expected:
    """What a run over the first `days` days must end with. Hours begin on the hour, in UTC.

    late: the flights more than two hours late. planes: of every departure its aircraft, or None when it is unknown: the
    enriched topic must hold each of these, with a model where the table knows the aircraft.
    """

    days: int
    hours: dict[tuple[str, datetime], Hour]
    late: Counter[FlightKey]
    departures: dict[FlightKey, str | None]
    arrivals: int
    models: dict[str, str]
    airlines: dict[str, str]


def expected(days: int, place: Path | None = None) -> Expected:
    """Compute the results of the first `days` days (of scheduled local departure). place: folder of the CSV files."""
    import pandas as pd

    place = place or folder()
    flights = pd.read_csv(
        place / "flights.csv.zip",
        usecols=[*_DAY, "dep_time", "dep_delay", "arr_time", *_FLIGHT, "tailnum", "minute", "time_hour"],
        dtype={"carrier": "str", "tailnum": "str", "origin": "str"},
    )
    flights = flights[_day(flights) < FIRST_DAY + timedelta(days=days)]
    flights = flights[flights["dep_time"].notna()]
    scheduled = pd.to_datetime(flights["time_hour"], utc=True) + pd.to_timedelta(flights["minute"], unit="min")
    departed = scheduled + pd.to_timedelta(flights["dep_delay"], unit="min")
    flights = flights.assign(scheduled=scheduled, hour=departed.dt.floor("h"))
    keys = [
        (carrier, flight, origin, time.to_pydatetime())
        for carrier, flight, origin, time in zip(
            flights["carrier"], flights["flight"].tolist(), flights["origin"], flights["scheduled"], strict=True
        )
    ]
    tailnums = [None if pd.isna(tailnum) else str(tailnum) for tailnum in flights["tailnum"]]
    planes = pd.read_csv(place / "planes.csv", dtype="str")
    airlines = pd.read_csv(place / "airlines.csv", dtype="str")
    late = (flights["dep_delay"] > VERY_LATE).tolist()
    return Expected(
        days=days,
        hours=_hours(flights),
        late=Counter(key for key, is_late in zip(keys, late, strict=True) if is_late),
        departures=dict(zip(keys, tailnums, strict=True)),
        arrivals=int(flights["arr_time"].notna().sum()),
        models=dict(zip(planes["tailnum"], planes["model"], strict=True)),
        airlines=dict(zip(airlines["carrier"], airlines["name"], strict=True)),
    )


def _day(flights: pd.DataFrame) -> pd.Series[date]:
    import pandas as pd

    days = pd.to_datetime(flights[_DAY])
    return days.dt.date


def _hours(flights: pd.DataFrame) -> dict[tuple[str, datetime], Hour]:
    hours = {}
    for (origin, hour), delays in flights.groupby(["origin", "hour"])["dep_delay"]:
        hours[str(origin), hour.to_pydatetime()] = Hour(
            flights=int(delays.size),
            mean_delay=float(delays.mean()),
            p90_delay=float(delays.quantile(0.9, interpolation="linear")),
            delays=tuple(sorted(float(d) for d in delays)),
        )
    return hours
