"""Rows `latency` and `commit`: how long a record takes, at a steady rate and when each is synced to the disk."""

from __future__ import annotations

from functools import partial

from versus.bench import Bench
from versus.brokers import Side
from versus.clients import Ran

CASES = ((1_000, 0), (20_000, 5), (20_000, 0))
"""Records a second, and the clients' linger.ms: 5 is the default of both. Without, a batch may hold a single record."""
SECONDS = 7.0
SHORTEST_S = 3.0
SIZE = 100
PIPELINED = 20_000
COMMIT_SECONDS = 5.0
WARM_UP_S = 1.0
AS_FAST = "1 producer, 1 KiB, as fast as it can, Java"


def latency(bench: Bench) -> None:
    """Each case, from call to receipt with librdkafka, and from call to acknowledgement with the Java client."""
    seconds = max(SHORTEST_S, SECONDS * bench.size)
    for rate, linger in CASES[:2] if bench.brief else CASES:
        case = f"{rate:,} records/s, " + (f"linger {linger} ms, " if linger else "no linger, ")
        for client, run in (("librdkafka", _receipt), ("Java", _acknowledgement)):
            bench.each("latency", case + client, partial(run, bench, case + client, rate, linger, seconds))


def _receipt(bench: Bench, case: str, rate: int, linger: int, seconds: float, side: Side) -> None:
    with side.topic(bench.name("latency")) as topic:
        before = side.cpu()
        ran = bench.librdkafka.latency(side, topic, rate, seconds, SIZE, _config(linger))
        _add(bench, case, side, ran, side.cpu() - before)


def _acknowledgement(bench: Bench, case: str, rate: int, linger: int, seconds: float, side: Side) -> None:
    # A quarter of the records is for warming up.
    records = int(rate * seconds * 4 / 3)
    with side.topic(bench.name("latency")) as topic:
        before = side.cpu()
        ran = bench.java.produce(side, topic, records, SIZE, _config(linger), rate=rate)
        _add(bench, case, side, Ran(records, ran.rate, ran.cpu, ran.latency), side.cpu() - before)


def _config(linger: int) -> dict[str, str]:
    return {"acks": "all", "linger.ms": str(linger)}


def _add(bench: Bench, case: str, side: Side, ran: Ran, cpu: float) -> None:
    measures = {f"{name} ms": value for name, value in ran.latency.items()}
    bench.add("latency", case, side, {**measures, "CPU us/record": cpu * 1e6 / ran.records})


def commit(bench: Bench) -> None:
    """1 and 50 producers that each wait for the acknowledgement of a record, and one that does not wait."""
    seconds = max(SHORTEST_S, COMMIT_SECONDS * bench.size)
    for clients in (1, 50):
        case = f"{clients} producer{'s' if clients > 1 else ''}, one record each under way"
        bench.each("commit", case, partial(_one_by_one, bench, case, clients, seconds))
    bench.each("commit", AS_FAST, partial(_pipelined, bench, max(1000, int(PIPELINED * bench.size))))


def _one_by_one(bench: Bench, case: str, clients: int, seconds: float, side: Side) -> None:
    with side.topic(bench.name("commit"), config=side.commit) as topic:
        bench.librdkafka.one_by_one(side, topic, clients, WARM_UP_S, SIZE)
        before = side.cpu()
        ran = bench.librdkafka.one_by_one(side, topic, clients, seconds, SIZE)
        cpu = side.cpu() - before
        measures = {f"{name} ms": value for name, value in ran.latency.items()}
        measures = {"acknowledged/s": ran.rate, **measures, "CPU us/record": cpu * 1e6 / ran.records}
        bench.add("commit", case, side, measures)


def _pipelined(bench: Bench, records: int, side: Side) -> None:
    with side.topic(bench.name("commit"), config=side.commit) as topic:
        bench.librdkafka.one_by_one(side, topic, 1, WARM_UP_S, 1024)
        before = side.cpu()
        ran = bench.java.produce(side, topic, records, 1024, {})
        cpu = side.cpu() - before
        bench.add("commit", AS_FAST, side, {"acknowledged/s": ran.rate, "CPU us/record": cpu * 1e6 / records})
