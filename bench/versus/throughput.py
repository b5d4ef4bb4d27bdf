"""Rows `produce`, `consume` and `requests`: how much goes through a broker, and what it costs the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from versus.bench import Bench
from versus.brokers import Side, in_turn
from versus.clients import Ran

RECORDS = {1024: 300_000, 100: 2_500_000}
"""Records of a run at size 1, by their bytes: 310 and 250 MB, which the page cache takes without waiting for the disk."""
FASTER = {"Java": 1, "librdkafka": 2}
"""So many times more, because the client is so much faster: a run should take a second or more."""
REQUESTS = 40_000
FEW = 2_000


@dataclass(frozen=True)
class Case:
    """What differs from the base case: Java, records of 1 KiB, one partition, acks=all, no compression, one client.

    brief: it belongs to a short run too. config: of the producer. share: of the usual number of records. spread: how much
    shorter or longer than `size` records are.
    """

    name: str
    client: str = "Java"
    size: int = 1024
    spread: int = 0
    partitions: int = 1
    clients: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    brief: bool = False
    share: float = 1.0

    @property
    def title(self) -> str:
        """For the table."""
        return f"{self.client}, {self.name}"

    def records(self, bench: Bench) -> int:
        """How many records of all clients a run has."""
        return (
            max(FEW, int(RECORDS[self.size] * FASTER[self.client] * self.share * bench.size))
            // self.clients
            * self.clients
        )


def cases(client: str) -> list[Case]:
    """The base case, then one thing changed at a time."""
    return [
        Case("1 KiB, 1 partition, acks=all", client, brief=True),
        Case("100 B", client, size=100, brief=client == "librdkafka"),
        Case("50 to 150 B", client, size=100, spread=50, brief=client == "librdkafka"),
        Case("8 partitions", client, partitions=8),
        Case("acks=1", client, config={"acks": "1"}),
        *(
            Case(codec, client, config={"compression.type": codec}, brief=codec == "lz4" and client == "Java")
            for codec in ("gzip", "snappy", "lz4", "zstd")
        ),
        Case("10 clients", client, clients=10, brief=client == "librdkafka"),
    ]


PRODUCE = [*cases("Java"), *cases("librdkafka")]
# Each of ten clients reads everything.
CONSUME = [
    case if case.clients == 1 else Case(case.name, case.client, clients=10, share=0.25, brief=case.brief)
    for case in PRODUCE
]


def measured(bench: Bench, side: Side, size: int, action: Callable[[], Ran]) -> dict[str, float]:
    """The measures of one run of a client."""
    before = side.cpu()
    ran = action()
    cpu = side.cpu() - before
    amount = ran.records * size / 1e6
    return {
        "MB/s": ran.rate * size / 1e6,
        "records/s": ran.rate,
        "CPU ms/MB": cpu * 1000 / amount,
        "broker s": cpu,
        "wall s": ran.records / ran.rate,
        "client s": ran.cpu,
    }


def produce(bench: Bench) -> None:
    """Every case of the produce row."""
    for case in PRODUCE:
        if bench.brief and not case.brief:
            continue
        client = bench.client(case.client)
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                with side.topic(bench.name("produce"), case.partitions) as topic:
                    run = _produce(client, side, topic, case, bench)
                    bench.add("produce", case.title, side, measured(bench, side, case.size, run))


def _produce(client: Any, side: Side, topic: str, case: Case, bench: Bench) -> Callable[[], Ran]:
    records = case.records(bench)
    return lambda: client.produce(
        side, topic, records, case.size, case.config, clients=case.clients, spread=case.spread
    )


def consume(bench: Bench) -> None:
    """Every case of the consume row; librdkafka fills the topics, with the compression and the sizes of the case."""
    for case in CONSUME:
        if "acks" in case.config or case.spread or (bench.brief and not case.brief):
            continue
        client = bench.client(case.client)
        records = case.records(bench)
        topics = {side: bench.name("consume") for side in bench.sides}
        for side, topic in topics.items():
            side.create(topic, case.partitions)
            # As the Java client batches by default, so that both kinds of client read the same.
            config = {"batch.size": "16384", "linger.ms": "5", **case.config}
            bench.librdkafka.produce(side, topic, records, case.size, config)
        for repeat in range(bench.repeats):
            for side in in_turn(bench.sides, repeat):
                run = _consume(client, side, topics[side], records, case)
                bench.add("consume", case.title, side, measured(bench, side, case.size, run))
        for side, topic in topics.items():
            side.delete(topic)


def _consume(client: Any, side: Side, topic: str, records: int, case: Case) -> Callable[[], Ran]:
    # By default librdkafka stops fetching for a second when it has 100,000 records that were not asked for yet.
    config = {"fetch.queue.backoff.ms": "5"} if case.client == "librdkafka" else {}
    return lambda: client.consume(side, topic, records, config, clients=case.clients, partitions=case.partitions)


def requests(bench: Bench) -> None:
    """What one request costs: each holds one record of 100 bytes; producers keep five under way, consumers one."""
    count = max(FEW, int(REQUESTS * bench.size))
    # Neither Produce request nor batch holds more than one record, and a fetch ends behind the first batch.
    produces = {"batch.num.messages": "1", "linger.ms": "0", "max.in.flight.requests.per.connection": "5"}
    fetches = {"fetch.message.max.bytes": "1", "queued.min.messages": "1000000"}
    for repeat in range(bench.repeats):
        for side in in_turn(bench.sides, repeat):
            with side.topic(bench.name("requests")) as topic:
                title = "librdkafka, {} of one record of 100 B"
                before = side.cpu()
                ran = bench.librdkafka.produce(side, topic, count, 100, produces)
                bench.add("requests", title.format("Produce"), side, per_request(side.cpu() - before, ran))
                before = side.cpu()
                ran = bench.librdkafka.consume(side, topic, count, fetches)
                bench.add("requests", title.format("Fetch"), side, per_request(side.cpu() - before, ran))


def per_request(cpu: float, ran: Ran) -> dict[str, float]:
    """The measures of a run with one record a request."""
    return {"requests/s": ran.rate, "CPU us/request": cpu * 1e6 / ran.records}
