"""Fills a log and a database with plausible flights traffic, for looking at the console while nothing else runs.

    python tests/serve/feed.py --kafka 127.0.0.1:9092 --folder /tmp/feed [--seconds 60] [--rate 400]

It starts a PostgreSQL in the folder, serves the console, and prints its address. The rows, positions and statuses are written
with the code that the real parts use; only what they say is made up (from a fixed seed).
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

import millstream as ms
from millstream.app.graph import describe
from millstream.app.sources import postgres
from millstream.client.admin import end_offsets, ensure_topics
from millstream.client.groups import commit
from millstream.client.producer import producer
from millstream.monitor.status import Reporter
from millstream.settings import Kafka

ORIGINS = ("EWR", "JFK", "LGA")
DESTINATIONS = ("ATL", "BOS", "CLT", "DEN", "IAH", "LAX", "MCO", "MIA", "ORD", "SFO")
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "WN")
TABLES = {
    n: {"rows": r, "total": r, "copied": True} for n, r in (("planes", 3322), ("airlines", 16), ("airports", 1458))
}


def application() -> ms.App:
    """Return the flights application's declaration; its functions are never called here."""
    app = ms.App("flights")

    class Departure(ms.Event):
        carrier: str
        flight: int
        origin: str
        dest: str
        tailnum: str | None
        departed_at: datetime
        delay: float

    class Arrival(ms.Event):
        tailnum: str | None
        arrived_at: datetime
        delay: float | None

    departures = app.topic("departures", Departure, key="tailnum", event_time="departed_at", lateness="2 hours")
    app.topic("arrivals", Arrival, key="tailnum", event_time="arrived_at", lateness="2 hours")
    planes = app.table("planes", source=postgres("ops", table="planes"))
    airlines = app.table("airlines", source=postgres("ops", table="airlines"))
    app.table("airports", source=postgres("ops", table="airports"))

    @app.view(departures, key=["origin", "hour"])
    def delay_by_hour(departures):
        raise NotImplementedError

    @app.stream(departures, planes, airlines, to="departures_enriched", key="tailnum")
    def enriched(departures, planes, airlines):
        raise NotImplementedError

    @app.alert(departures, to="late_departures", key="tailnum")
    def very_late(departures):
        raise NotImplementedError

    return app


class Store:
    """The view's table and its checkpoint, written as the view's query writes them."""

    def __init__(self, conninfo: str) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._connection.execute("SET client_min_messages = warning")
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS millstream")
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS flights")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS millstream.checkpoints (app text, query text, query_id uuid, batch_id bigint,"
            " at timestamptz, PRIMARY KEY (app, query))"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS flights.delay_by_hour (origin text, hour_start timestamptz, hour_end timestamptz,"
            " flights bigint, mean_delay double precision, p90_delay double precision, PRIMARY KEY (origin, hour_start))"
        )

    def write(self, batch: int, rows: list[tuple[str, datetime, int, float, float]]) -> None:
        """Upsert (origin, hour, flights, mean, p90) and note the batch, in one transaction."""
        with self._connection.transaction():
            for origin, hour, flights, mean, p90 in rows:
                self._connection.execute(
                    "INSERT INTO flights.delay_by_hour VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (origin, hour_start)"
                    " DO UPDATE SET flights = excluded.flights, mean_delay = excluded.mean_delay,"
                    " p90_delay = excluded.p90_delay",
                    (origin, hour, hour + timedelta(hours=1), flights, mean, p90),
                )
            self._connection.execute(
                "INSERT INTO millstream.checkpoints VALUES ('flights', 'delay_by_hour', gen_random_uuid(), %s, now())"
                " ON CONFLICT (app, query) DO UPDATE SET batch_id = excluded.batch_id, at = excluded.at",
                (batch,),
            )

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Feed:
    """Made-up flights in event time, `rate` a second, and what the parts would say of them."""

    def __init__(self, kafka: Kafka, conninfo: str, *, rate: int = 400, seed: int = 1) -> None:
        self.app = application()
        self._kafka = kafka
        self._random = random.Random(seed)
        self._rate = rate
        self.store = Store(conninfo)
        self._producer = producer(kafka)
        self.reporter = Reporter(kafka, "flights")
        self._at = datetime(2013, 1, 1, 10, tzinfo=UTC)
        self._sent = 0
        self._batch = 0
        self._hours: dict[tuple[str, datetime], list[float]] = defaultdict(list)
        self._mood = dict.fromkeys(ORIGINS, 12.0)

    def prepare(self) -> None:
        """Create the topics and fill the captured tables."""
        ensure_topics(
            self._kafka,
            [
                *((name, 2, None) for name in ("departures", "arrivals", "departures_enriched", "late_departures")),
                *((name, 1, {"cleanup.policy": "compact"}) for name in ("planes", "airlines", "airports")),
                ("flights.dead_letters", 1, {"cleanup.policy": "compact"}),
            ],
        )
        for table, amount in (("planes", 3322), ("airlines", 16), ("airports", 1458)):
            for i in range(amount):
                row = {"id": i}
                value = {"before": None, "after": row, "op": "r", "ts_ms": int(time.time() * 1000)}
                self._send(table, json.dumps(row), value)
        self._producer.flush()
        deadline = time.monotonic() + 30
        while True:  # a broker that has just started is still loading its groups
            try:
                commit(self._kafka, "flights.delay_by_hour", {("departures", 0): 0})
                return
            except ms.MillstreamError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def second(self, share: float = 1.0) -> None:
        """Write what happens in one second."""
        late = []
        for _ in range(int(self._rate * share)):
            late += self._departure()
        if self._random.random() < 0.2:
            self.dead_letter(f"expected JSON, got {self._random.choice(('plain text', 'half an object', 'nothing'))}")
        for event in late:
            self.alert(event)
        self._producer.flush()
        self._report(len(late))

    def alert(self, event: dict[str, object]) -> None:
        """Write one alert with its origin."""
        origin = f"departures-{self._random.randrange(2)}-{self._sent}"
        self._send("late_departures", str(event["tailnum"]), event, [("origin", origin.encode())])
        self._producer.flush()

    def dead_letter(self, reason: str) -> None:
        """Write one dead letter."""
        key = f"departures-{self._random.randrange(2)}-{self._sent}"
        value = {"topic": "departures", "partition": 0, "offset": self._sent, "reason": reason}
        value |= {"at": datetime.now(UTC).isoformat(), "key": "N12345", "value": '{"carrier": "UA", "flight": '}
        self._send("flights.dead_letters", key, value)
        self._producer.flush()

    def close(self) -> None:
        """End the connections."""
        self.reporter.close()
        self.store.close()
        self._producer.flush(5)

    def _departure(self) -> list[dict[str, object]]:
        self._at += timedelta(
            seconds=self._random.expovariate(1 / (95 if self._at.hour >= 10 or self._at.hour < 4 else 900))
        )
        origin = self._random.choice(ORIGINS)
        self._mood[origin] = max(
            1.0, self._mood[origin] + self._random.gauss(0, 0.8) - (self._mood[origin] - 14) * 0.01
        )
        delay = round(self._random.expovariate(1 / self._mood[origin]) - 5, 0)
        event: dict[str, object] = {
            "carrier": self._random.choice(CARRIERS), "flight": self._random.randrange(1, 6000), "origin": origin,
            "dest": self._random.choice(DESTINATIONS), "tailnum": f"N{self._random.randrange(10_000, 99_999)}",
            "departed_at": self._at.isoformat(), "delay": delay,
        }  # fmt: skip
        self._send("departures", str(event["tailnum"]), event)
        self._send("departures_enriched", str(event["tailnum"]), event | {"manufacturer": "BOEING", "seats": 178})
        if self._random.random() < 0.97:
            self._send(
                "arrivals", str(event["tailnum"]), {"tailnum": event["tailnum"], "arrived_at": event["departed_at"]}
            )
        self._hours[origin, self._at.replace(minute=0, second=0, microsecond=0)].append(delay)
        self._sent += 1
        return [event] if delay > 120 else []

    def _send(self, topic: str, key: str, value: object, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._producer.produce(topic, json.dumps(value).encode(), key.encode(), headers=headers or [])
        self._producer.poll(0)

    def _report(self, late: int) -> None:
        self._batch += 1
        newest = sorted(self._hours, key=lambda k: k[1])[-12:]
        rows = []
        for origin, hour in newest:
            delays = sorted(self._hours[origin, hour])
            rows.append((origin, hour, len(delays), sum(delays) / len(delays), delays[int(len(delays) * 0.9)]))
        self.store.write(self._batch, rows)
        ends = end_offsets(self._kafka, ["departures", "planes", "airlines"])
        watermark = (self._at - timedelta(hours=2)).isoformat()
        for name, mode, behind in (("delay_by_hour", "micro-batch", 260), ("enriched", "micro-batch", 410),
                                   ("very_late", "realtime", 9), ("dead_letters", "micro-batch", 0)):  # fmt: skip
            lag = {
                tp: max(0, end - self._random.randrange(behind + 1) // 2)
                for tp, end in ends.items()
                if tp[0] == "departures"
            }
            commit(self._kafka, f"flights.{name}", lag)
            self.reporter.report(
                "query", name, state="running", error=None, mode=mode, batch=self._batch, input_rows=self._sent,
                output_rows=len(rows) if name == "delay_by_hour" else None if name == "dead_letters" else self._sent,
                rows_per_second=float(self._rate) + self._random.random() * 20 if self._rate else 0.0,
                watermark=watermark if name == "delay_by_hour" else None, dropped=0,
                batch_ms=self._random.randrange(180, 420) if mode == "micro-batch" else 5003,
                state_rows=len(self._hours) if name == "delay_by_hour" else None,
            )  # fmt: skip
        self.reporter.report("replay", "flights", state="running", error=None, sent=self._sent * 2, total=336_776 * 2,
                             event_time=self._at.isoformat(), rate=self._rate * 1.97, speed="max", days=7)  # fmt: skip
        self.reporter.report("capture", "ops", state="streaming", lag_bytes=self._random.randrange(0, 4000),
                             lsn=26_713_400, changes=12,
                             tables=TABLES)  # fmt: skip
        self.reporter.report(
            "deliver",
            "late_departures",
            state="running",
            to="late_departures",
            forwarded=late,
            suppressed=0,
            latency_ms=4.1,
            latency_p99_ms=11.7,
        )
        for i, name in enumerate(("broker", "postgres", "capture", "spark", "deliver", "replay", "serve")):
            self.reporter.report(
                "process",
                name,
                state="ready",
                pid=41_200 + i,
                restarts=1 if name == "spark" else 0,
                memory=1_012_000_000 if name == "spark" else 41_000_000 + i * 3_100_000,
                text="",
            )


def main() -> None:
    """Run the console over the feed."""
    from millstream.postgresql.server import Server
    from millstream.serve import run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=400)
    parser.add_argument("--empty", action="store_true", help="create nothing: how the page looks before anything runs")
    options = parser.parse_args()
    stop = threading.Event()
    kafka = Kafka(options.kafka)
    with Server(options.folder / "postgres") as server:
        conninfo = server.database("millstream")

        def ready(facts: dict[str, object]) -> None:
            print(f"ready {json.dumps(facts)}", flush=True)

        console = threading.Thread(
            target=run,
            args=(describe(application()), kafka, conninfo),
            kwargs={"listen": options.listen, "ready": ready, "stop": stop},
        )
        console.start()
        try:
            feed = None if options.empty else Feed(kafka, conninfo, rate=options.rate)
            if feed:
                feed.prepare()
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                began = time.monotonic()
                if feed:
                    feed.second()
                stop.wait(max(0.05, 1 - (time.monotonic() - began)))
            if feed:
                feed.close()
        finally:
            stop.set()
            console.join()


if __name__ == "__main__":
    main()
