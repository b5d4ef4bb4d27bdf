"""Rows `latency` and `commit`: how long a record takes, at a steady rate and when each is synced to the disk."""

from __future__ import annotations

from versus.bench import Bench
from versus.brokers import Side, in_turn
from versus.clients import Ran

CASES = ((1_000, 0), (20_000, 5), (20_000, 0))
"""Records a second, and the clients' linger.ms: 5 is the default of both. Without, a batch may hold a single record."""
SECONDS = 6.0
SHORTEST_S = 3.0
SIZE = 100
PIPELINED = 20_000
COMMIT_SECONDS = 5.0


def latency(bench: Bench) -> None:
    """Each case, from call to receipt with librdkafka, and from call to acknowledgement with the Java client."""
    seconds = max(SHORTEST_S, SECONDS * bench.size)
    for rate, linger in CASES[:2] if bench.brief else CASES:
        case = f"{rate:,} records/s, " + (f"linger {linger} ms, " if linger else "no linger, ")
        config = {"acks": "all", "linger.ms": str(linger)}
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                with side.topic(bench.name("latency")) as topic:
                    before = side.cpu()
                    ran = bench.librdkafka.latency(side, topic, rate, seconds, SIZE, config)
                    _add(bench, case + "librdkafka", side, ran, side.cpu() - before)
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                with side.topic(bench.name("latency")) as topic:
                    before = side.cpu()
                    # A quarter of the records is for warming up.
                    records = int(rate * seconds * 4 / 3)
                    ran = bench.java.produce(side, topic, records, SIZE, config, rate=rate)
                    ran = Ran(records, ran.rate, ran.cpu, ran.latency)
                    _add(bench, case + "Java", side, ran, side.cpu() - before)


def _add(bench: Bench, case: str, side: Side, ran: Ran, cpu: float) -> None:
    measures = {f"{name} ms": value for name, value in ran.latency.items()}
    bench.add("latency", case, side, {**measures, "CPU us/record": cpu * 1e6 / ran.records})


def commit(bench: Bench) -> None:
    """1 and 50 producers that each wait for the acknowledgement of a record, and one that does not wait."""
    seconds = max(SHORTEST_S, COMMIT_SECONDS * bench.size)
    for clients in (1, 50):
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                with side.topic(bench.name("commit"), config=side.commit) as topic:
                    before = side.cpu()
                    ran = bench.librdkafka.one_by_one(side, topic, clients, seconds, SIZE)
                    cpu = side.cpu() - before
                    measures = {f"{name} ms": value for name, value in ran.latency.items()}
                    measures = {"acknowledged/s": ran.rate, **measures, "CPU us/record": cpu * 1e6 / ran.records}
                    case = f"{clients} producer{'s' if clients > 1 else ''}, one record each under way"
                    bench.add("commit", case, side, measures)
    records = max(1000, int(PIPELINED * bench.size))
    for repeat in range(bench.repeats):
        for side in in_turn(bench.sides, repeat):
            with side.topic(bench.name("commit"), config=side.commit) as topic:
                before = side.cpu()
                ran = bench.java.produce(side, topic, records, 1024, {})
                measures = {"acknowledged/s": ran.rate, "CPU us/record": (side.cpu() - before) * 1e6 / records}
                bench.add("commit", "1 producer, 1 KiB, as fast as it can, Java", side, measures)
