"""Rows `produce`, `consume` and `requests`: how much goes through a broker, and what it costs the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from versus.bench import Bench
from versus.brokers import Side
from versus.clients import Ran

RECORDS = {1024: 160_000, 100: 1_250_000}
"""Records of a run at size 1, by their bytes: 164 and 125 MB, which the page cache takes without waiting for the disk."""
FASTER = {"Java": 1, "librdkafka": 3}
"""So many times more, because the client is so much faster: a run should take a second or more."""
SLOW = {"gzip": 0.3, "zstd": 0.5}
"""Codecs with which clients take their time, whichever broker they send to."""
REQUESTS = 40_000
FEW = 2_000
WARM_UP_MB = 100.0
AS_JAVA = {"batch.size": "16384", "linger.ms": "5"}
SOON = {"fetch.queue.backoff.ms": "5"}
"""By default librdkafka stops fetching for a second when it has 100,000 records that were not asked for yet."""
# Neither Produce request nor batch holds more than one record, and a fetch ends behind the first batch.
ONE_BY_ONE = {"batch.num.messages": "1", "linger.ms": "0", "max.in.flight.requests.per.connection": "5"}
FETCH_ONE = {"fetch.message.max.bytes": "1", "queued.min.messages": "1000000"}


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
            Case(
                codec,
                client,
                config={"compression.type": codec},
                brief=codec == "lz4" and client == "Java",
                share=SLOW.get(codec, 1.0),
            )
            for codec in ("gzip", "snappy", "lz4", "zstd")
        ),
        Case("10 clients", client, clients=10, brief=client == "librdkafka"),
    ]


PRODUCE = [*cases("Java"), *cases("librdkafka")]
# Each of ten clients reads everything.
CONSUME = [
    case if case.clients == 1 else Case(case.name, case.client, clients=10, share=0.4, brief=case.brief)
    for case in PRODUCE
]


def measured(side: Side, size: int, action: Callable[[], Ran]) -> dict[str, float]:
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
        if case.brief or not bench.brief:
            bench.each("produce", case.title, partial(_produce, bench, case), partial(_warm_up, bench, case))


def _warm_up(bench: Bench, case: Case, side: Side) -> None:
    """What the case will do, by librdkafka, which takes a second for it: requests of the same kind and size."""
    records = int(WARM_UP_MB * 1e6 * case.share / case.size) // case.clients * case.clients
    config = {**(AS_JAVA if case.client == "Java" else {}), **case.config}
    with side.topic(bench.name("warm-up"), case.partitions) as topic:
        bench.librdkafka.produce(side, topic, records, case.size, config, clients=case.clients, spread=case.spread)


def _produce(bench: Bench, case: Case, side: Side) -> None:
    records, client = case.records(bench), bench.client(case.client)
    with side.topic(bench.name("produce"), case.partitions) as topic:
        run = partial(
            client.produce, side, topic, records, case.size, case.config, clients=case.clients, spread=case.spread
        )
        bench.add("produce", case.title, side, measured(side, case.size, run))


def consume(bench: Bench) -> None:
    """Every case of the consume row; librdkafka fills the topics, with the compression and the sizes of the case."""
    for case in CONSUME:
        if "acks" in case.config or case.spread or (bench.brief and not case.brief):
            continue
        if not bench.wanted("consume", case.title):
            continue
        topics: dict[Side, str] = {}
        for side in bench.sides:
            with bench.attempt("consume", case.title, side):
                topics[side] = _filled(bench, case, side)
        bench.each("consume", case.title, partial(_consume, bench, case, topics), partial(_read, bench, case, topics))
        for side, topic in topics.items():
            with bench.attempt("consume", case.title, side):
                side.delete(topic)


def _filled(bench: Bench, case: Case, side: Side) -> str:
    """A topic that holds what is to be read."""
    topic = bench.name("consume")
    side.create(topic, case.partitions)
    # As the Java client batches by default, so that both kinds of client read the same.
    bench.librdkafka.produce(side, topic, case.records(bench), case.size, {**AS_JAVA, **case.config})
    return topic


def _read(bench: Bench, case: Case, topics: Mapping[Side, str], side: Side) -> Ran:
    """Read it by librdkafka: for a warm-up, and because no record may be missing."""
    return bench.librdkafka.consume(side, topics[side], case.records(bench), SOON, partitions=case.partitions)


def _consume(bench: Bench, case: Case, topics: Mapping[Side, str], side: Side) -> None:
    client = bench.client(case.client)
    config = SOON if case.client == "librdkafka" else {}
    run = partial(
        client.consume,
        side,
        topics[side],
        case.records(bench),
        config,
        clients=case.clients,
        partitions=case.partitions,
    )
    bench.add("consume", case.title, side, measured(side, case.size, run))


def requests(bench: Bench) -> None:
    """What one request costs: each holds one record of 100 bytes; producers keep five under way, consumers one."""
    count = max(FEW, int(REQUESTS * bench.size))
    name = "librdkafka, {} of one record of 100 B"
    bench.each("requests", name.format("Produce"), partial(_produces, bench, name.format("Produce"), count))
    bench.each("requests", name.format("Fetch"), partial(_fetches, bench, name.format("Fetch"), count))


def _produces(bench: Bench, case: str, count: int, side: Side) -> None:
    with side.topic(bench.name("requests")) as topic:
        # A few first, so that opening the topic and the first rounds of the JVM's compiler do not count.
        bench.librdkafka.produce(side, topic, count // 4, 100, ONE_BY_ONE)
        before = side.cpu()
        ran = bench.librdkafka.produce(side, topic, count, 100, ONE_BY_ONE)
        bench.add("requests", case, side, per_request(side.cpu() - before, ran))


def _fetches(bench: Bench, case: str, count: int, side: Side) -> None:
    with side.topic(bench.name("requests")) as topic:
        bench.librdkafka.produce(side, topic, count, 100, ONE_BY_ONE)
        bench.librdkafka.consume(side, topic, count // 4, FETCH_ONE)
        before = side.cpu()
        ran = bench.librdkafka.consume(side, topic, count, FETCH_ONE)
        bench.add("requests", case, side, per_request(side.cpu() - before, ran))


def per_request(cpu: float, ran: Ran) -> dict[str, float]:
    """The measures of a run with one record a request."""
    return {"requests/s": ran.rate, "CPU us/request": cpu * 1e6 / ran.records}
