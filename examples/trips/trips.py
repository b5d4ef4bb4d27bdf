"""Rented bicycles: trips with their stations from PostgreSQL, rides by city and hour, and an alert on bicycles that stay out."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import millstream as ms

app = ms.App("trips")


class Trip(ms.Event):
    id: int
    bike: str
    station: int
    started_at: datetime
    minutes: float


class Ride(ms.Event):
    """A trip with the city of its station."""

    id: int
    bike: str
    city: str
    started_at: datetime
    minutes: float


trips = app.topic("trips", Trip, key="bike", event_time="started_at", lateness="10 minutes")
rides = app.topic("rides", Ride, key="bike", event_time="started_at", lateness="10 minutes")
stations = app.table("stations", source=ms.postgres("city", table="stations"))


@app.stream(trips, stations, to=rides, key="bike")
def located(trips: DataFrame, stations: DataFrame) -> DataFrame:
    places = stations.select(F.col("id").alias("station"), "city")
    return trips.join(places, "station").select("id", "bike", "city", "started_at", "minutes")


@app.view(rides, key=["city", "hour"])
def rides_by_hour(rides: DataFrame) -> DataFrame:
    return rides.groupBy("city", ms.tumbling("started_at", "1 hour").alias("hour")).agg(
        F.count("*").alias("rides"), F.sum("minutes").alias("minutes"), F.max("minutes").alias("longest")
    )


@app.alert(trips, to="long_trips", key="bike")
def long(trips: DataFrame) -> DataFrame:
    return trips.where("minutes > 180")
