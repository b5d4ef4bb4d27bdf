"""Flights out of New York: a view of delays, departures with their aircraft, and alerts on the very late ones."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms

app = ms.App("flights")


class Departure(ms.Event):
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    scheduled_at: datetime
    departed_at: datetime
    delay: float  # minutes


class Arrival(ms.Event):
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    departed_at: datetime
    arrived_at: datetime
    delay: float | None  # minutes


departures = app.topic("departures", Departure, key="tailnum", event_time="departed_at", lateness="2 hours")
arrivals = app.topic("arrivals", Arrival, key="tailnum", event_time="arrived_at", lateness="2 hours")

planes = app.table("planes", source=ms.postgres("ops", table="planes"))
airlines = app.table("airlines", source=ms.postgres("ops", table="airlines"))
airports = app.table("airports", source=ms.postgres("ops", table="airports"))


@app.view(departures, key=["origin", "hour"])
def delay_by_hour(departures: DataFrame) -> DataFrame:
    return departures.groupBy("origin", ms.tumbling("departed_at", "1 hour").alias("hour")).agg(
        F.count("*").alias("flights"),
        F.avg("delay").alias("mean_delay"),
        F.percentile("delay", 0.9).alias("p90_delay"),
    )


@app.stream(departures, planes, airlines, to="departures_enriched", key="tailnum")
def enriched(departures: DataFrame, planes: DataFrame, airlines: DataFrame) -> DataFrame:
    aircraft = planes.select("tailnum", "manufacturer", "model", "seats")
    return departures.join(aircraft, "tailnum", "left").join(airlines, "carrier", "left")


@app.alert(departures, to="late_departures", key="tailnum", latency="realtime", every="5 seconds")
def very_late(departures: DataFrame) -> DataFrame:
    return departures.where("delay > 120")
