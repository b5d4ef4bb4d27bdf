"""Apache Kafka's own Java clients: its verifiable and transactional tools, and a Kafka Streams application, exactly once.

The broker is killed (SIGKILL) under each of them; what they report as done must be there, once and in order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from millstream.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from millstream.settings import MillstreamError
from millstream.spark import java
from tests.apache_kafka import fetched
from tests.broker.serving import Process
from tests.broker.share.workers import configure
from tests.broker.wire import Wire
from tests.proof.part import TRACE, Results, Run, Skip
from tests.torture.loads import QUICK, create, stored

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools"
COMPILE_S = 120.0
RUN_S = 120.0  # for one program
MESSAGES = 20_000  # times the size
PARTITIONS = 3
KEYS = 50
PASSWORD = "s3cret,=with"
SETTINGS = (
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
    "group.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=3000",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.heartbeat.interval.ms=500",
    "group.consumer.min.heartbeat.interval.ms=500",
)

# Commands of Kafka's administrators, in this order, and a piece of what each must print.
GROUP_COMMAND = "consumer.group.ConsumerGroupCommand {at} --group typing"
SHARE_COMMAND = "consumer.group.ShareGroupCommand {at} --group sharing"
COMMANDS = {
    "BrokerApiVersionsCommand {at}": "Produce(0): 0 to 13",
    "TopicCommand {at} --create --topic made --partitions 3": "Created topic made.",
    "TopicCommand {at} --alter --topic made --partitions 5": "",
    "TopicCommand {at} --describe --topic made": "PartitionCount: 5",
    "TopicCommand {at} --delete --topic made": "",
    "consumer.ConsoleConsumer {at} --group typing --topic typed --from-beginning --max-messages 10": "7 8 9",
    f"{GROUP_COMMAND} --describe": "typing typed 0 10 10 0",
    "GroupsCommand {at} --list": "typing Classic consumer",
    f"{GROUP_COMMAND} --reset-offsets --shift-by -4 --topic typed --execute": "typing typed 0 6",
    f"{GROUP_COMMAND} --delete-offsets --topic typed": "Successful",
    f"{GROUP_COMMAND} --delete": "was successful",
    "consumer.ConsoleShareConsumer {at} --group sharing --topic typed --max-messages 10": "7 8 9",
    "GroupsCommand {at} --list --share": "sharing Share share",
    f"{SHARE_COMMAND} --describe": "sharing typed 0 10 0",
    f"{SHARE_COMMAND} --describe --state": "Empty",
    f"{SHARE_COMMAND} --reset-offsets --topic typed --to-earliest --execute": "sharing typed 0 0",
    f"{SHARE_COMMAND} --delete-offsets --topic typed": "Successful",
    f"{SHARE_COMMAND} --delete": "was successful",
    "DeleteRecordsCommand {at} --offset-json-file {bounds}": "low_watermark: 3",
    "GetOffsetShell {at} --topic typed --time earliest": "typed:0:3",
    "LogDirsCommand {at} --describe --topic-list typed": '"partition":"typed-0"',
    "TransactionsCommand {at} describe-producers --topic typed --partition 0": "LastSequence",
    "MetadataQuorumCommand {at} describe --status": "LeaderId: 0",
    "FeatureCommand {at} describe": "transaction.version",
    "StreamsResetter {at} --application-id nobody --input-topics typed": "Topic: typed Partition: 0 Offset: 3",
}


def run(run: Run) -> Results:
    """All of them, each on topics of its own, over one broker."""
    try:
        paths = fetched(HERE / "java.txt")
        runtime = java.java_home(run.tools) / "bin" / "java"
    except MillstreamError as error:
        raise Skip(str(error)) from error
    results = Results()
    with run.broker(results, *SETTINGS) as broker:
        suite = Suite(run, broker, runtime, paths)
        for name, test in suite.tests():
            try:
                results.passed.append(f"{name}: {test()}")
            except Exception as error:
                results.failed[name] = f"{type(error).__name__}: {error}"
    results.note = f"{suite.kills} kills"
    return results


class Program:
    """A Java program that runs, and the lines that it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path) -> None:
        self.process, self.out = process, out

    def facts(self) -> list[dict[str, Any]]:
        """The JSON objects printed so far."""
        whole = self.out.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole if line.startswith("{")]

    def until(self, condition: Callable[[list[dict[str, Any]]], object], what: str) -> None:
        """Wait until what was printed is so."""
        deadline = time.monotonic() + RUN_S
        while not condition(self.facts()):
            assert time.monotonic() < deadline, f"after {RUN_S:.0f} s still not: {what}; {self.out.read_text()[-500:]}"
            assert self.process.poll() is None or condition(self.facts()), (
                f"it ended before: {what}; {self.out.read_text()[-500:]}"
            )
            time.sleep(0.05)


class Suite:
    """The tests over a broker."""

    def __init__(self, run: Run, broker: Process, runtime: Path, jars: list[Path]) -> None:
        self.run, self.broker, self.runtime, self.jars = run, broker, runtime, jars
        self.messages = MESSAGES * run.size
        self.kills = 0
        self.slowest = 0.0

    def tests(self) -> list[tuple[str, Callable[[], str]]]:
        """Name and test."""
        return [
            ("AdminClient", self.admin),
            ("a producer whose sessions end", self.sessions),
            ("VerifiableProducer over a kill", self.producer),
            ("VerifiableConsumer, classic group", lambda: self.consumer("classic")),
            ("VerifiableConsumer, new group", lambda: self.consumer("consumer")),
            ("VerifiableShareConsumer over a kill", self.sharer),
            ("TransactionalMessageCopier over kills", lambda: self.copier(False)),
            ("TransactionalMessageCopier in a group over kills", lambda: self.copier(True)),
            ("Kafka Streams, exactly once, over kills", self.streams),
            ("Kafka's commands", self.commands),
        ]

    @contextmanager
    def program(self, name: str, *arguments: str, classes: Path | None = None) -> Iterator[Program]:
        """Run a class; ended at the end if it still runs."""
        paths = [*map(str, self.jars), *([str(classes)] if classes else [])]
        out = self.run.folder / f"{name.rpartition('.')[2]}-{time.monotonic_ns()}.out"
        self.run.say(f"$ java {name} {' '.join(arguments)} > {out.name}")
        with out.open("wb") as file, self.run.log.open("ab") as log:
            words = [self.runtime, "-Xmx256m", "-XX:+UseSerialGC", "-cp", ":".join(paths), name, *arguments]
            process = subprocess.Popen(words, stdout=file, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield Program(process, out)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self.run.say(f"---- {out.name}, its end\n{out.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL the broker and start it again."""
        self.broker.end(signal.SIGKILL)
        self.broker.start()
        self.kills += 1

    def config(self, name: str, **values: str) -> str:
        """A file of client settings."""
        path = self.run.folder / f"{name}.properties"
        path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in values.items()))
        return str(path)

    def fill(self, topic: str, partitions: int) -> dict[int, list[bytes]]:
        """Numbered messages over all partitions; what is in each."""
        create(self.broker.address, topic, partitions)
        producer = Producer({"bootstrap.servers": self.broker.address, "linger.ms": 20, **QUICK})
        wanted: dict[int, list[bytes]] = defaultdict(list)
        for number in range(self.messages):
            value = b"%d" % number
            wanted[number % partitions].append(value)
            producer.produce(topic, value, b"k%d" % (number % KEYS), partition=number % partitions)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        return wanted

    def compiled(self, source: Path) -> Path:
        """The folder with a program's classes."""
        classes = self.run.folder / "classes"
        [compiler] = [path for path in self.jars if path.name.startswith("ecj-")]
        words = ["-17", "-nowarn", "-cp", ":".join(map(str, self.jars)), "-d", classes, source]
        code, said = self.run.command([self.runtime, "-jar", compiler, *words], COMPILE_S)
        assert code == 0, said
        return classes

    @contextmanager
    def guarded(self, name: str, *settings: str) -> Iterator[Process]:
        """Another broker, with access control and a user."""
        authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        process = Process(self.run.folder / name, authorizer, "super.users=User:ANONYMOUS;User:alice", *settings)
        process.address = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
        process.more = ["--add-scram=SCRAM-SHA-256=[name=alice,password=env:PASSWORD]"]
        process.environment = {"PASSWORD": PASSWORD}
        with process:
            yield process
        assert TRACE not in process.log.read_text(), f"an error in the broker: {process.log}"

    def answers(self, *arguments: str) -> str:
        """Run the administrator's program; what it says is wrong fails."""
        classes = self.compiled(HERE / "admin" / "Admin.java")
        with self.program("Admin", *arguments, classes=classes) as program:
            try:
                code = program.process.wait(RUN_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"it does not end: {program.out.read_text()[-500:]}") from None
            facts = program.facts()
        wrong = {each["name"]: each["wrong"] for each in facts if each["wrong"]}
        assert code == 0, f"it ended with {code}; {self.run.log}"
        assert not wrong, wrong
        assert facts, "it prints nothing"
        return ", ".join(each["name"] for each in facts)

    def admin(self) -> str:
        """Topics, settings, records, transactions, groups, access, users, quotas, the cluster; what is left out is refused."""
        with self.guarded("administered", *SETTINGS) as broker:
            return self.answers(broker.listeners["PLAINTEXT"])

    def sessions(self) -> str:
        """A session of two seconds is renewed on its connection; no message of nine seconds fails."""
        with self.guarded("sessions", "connections.max.reauth.ms=2000") as broker:
            return self.answers(broker.listeners["SASL_PLAINTEXT"], PASSWORD)

    def producer(self) -> str:
        """Everything that it says was acknowledged is where it was acknowledged."""
        create(self.broker.address, "verifiable", PARTITIONS)
        config = self.config(
            "producer", retries="2147483647", reconnect_backoff_max_ms="200", enable_idempotence="true"
        )
        words = ["--topic", "verifiable", "--max-messages", str(self.messages), "--throughput", "8000"]
        words += ["--bootstrap-server", self.broker.address, "--command-config", config]
        with self.program(f"{TOOLS}.VerifiableProducer", *words) as program:
            program.until(lambda facts: len(facts) > self.messages // 4, "a quarter is sent")
            self.kill()
            program.until(lambda facts: any(each["name"] == "tool_data" for each in facts), "it has ended")
            facts = program.facts()
        there = {
            (p, o): v.decode()
            for p, entries in stored(self.broker.address, "verifiable", PARTITIONS).items()
            for o, v in entries
        }
        told = [each for each in facts if each["name"] == "producer_send_success"]
        for each in told:
            found = there.get((each["partition"], each["offset"]))
            assert found == each["value"], (
                f"{each['value']} was acknowledged at {each['partition']}/{each['offset']}: {found} is there"
            )
        assert len(told) > self.messages // 2, f"only {len(told)} of {self.messages} were acknowledged"
        assert max(Counter(there.values()).values()) == 1, "a message is doubled"
        return f"{len(told)} of {self.messages} acknowledged"

    def consumer(self, protocol: str) -> str:
        """It reads everything and commits it."""
        topic = f"consumed-{protocol}"
        wanted = self.fill(topic, PARTITIONS)
        more = {"heartbeat_interval_ms": "500"} if protocol == "classic" else {}
        config = self.config(protocol, reconnect_backoff_max_ms="200", **more)
        words = [
            "--topic",
            topic,
            "--group-id",
            topic,
            "--group-protocol",
            protocol,
            "--reset-policy",
            "earliest",
            "--verbose",
        ]
        words += ["--bootstrap-server", self.broker.address, "--command-config", config]
        words += ["--session-timeout", "3000"] if protocol == "classic" else []

        def committed(facts: list[dict[str, Any]]) -> dict[int, int]:
            told = [each for each in facts if each["name"] == "offsets_committed" and each["success"]]
            return {part["partition"]: part["offset"] for each in told for part in each["offsets"]}

        ends = {partition: len(values) for partition, values in wanted.items()}
        with self.program(f"{TOOLS}.VerifiableConsumer", *words) as program:
            program.until(lambda facts: committed(facts) == ends, f"all is committed ({ends})")
            facts = program.facts()
        read: dict[int, list[bytes]] = defaultdict(list)
        for each in facts:
            if each["name"] == "record_data":
                read[each["partition"]].append(each["value"].encode())
        assert read == wanted, "it did not read each message once and in order"
        return f"{self.messages} read"

    def share(self, group: str) -> None:
        """Have a share group begin at the start."""
        with Wire(self.broker.address) as wire:
            assert configure(wire, group, share_auto_offset_reset="earliest") == 0

    def sharer(self) -> str:
        """What it says is acknowledged comes to it once, and in the end nothing is left."""
        wanted = self.fill("shared", PARTITIONS)
        self.share("shared")
        config = self.config("sharer", reconnect_backoff_max_ms="200")
        words = ["--topic", "shared", "--group-id", "shared", "--acknowledgement-mode", "sync"]
        words += ["--bootstrap-server", self.broker.address, "--command-config", config]

        def acknowledged(facts: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
            told = [each for each in facts if each["name"] == "offsets_acknowledged" and each["success"]]
            return Counter(
                (p["partition"], offset) for each in told for p in each["partitions"] for offset in p["offsets"]
            )

        with self.program(f"{TOOLS}.VerifiableShareConsumer", *words) as program:
            program.until(lambda facts: len(acknowledged(facts)) > self.messages // 4, "a quarter is acknowledged")
            self.kill()
            program.until(lambda _: self.lag("shared") == 0, "nothing is left")
            found = acknowledged(program.facts())
        assert not [where for where, count in found.items() if count > 1], "something was acknowledged twice"
        unsure = sum(map(len, wanted.values())) - len(found)
        assert unsure <= PARTITIONS * 500, f"{unsure} of them were never said to be acknowledged"
        return f"{len(found)} acknowledged, {unsure} whose answer the kill took"

    def lag(self, group: str) -> int:
        """How many messages a share group has yet to work off."""
        with Wire(self.broker.address) as wire:
            asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])
            [told] = wire.ask(asked).groups
        return sum(part.lag for topic in told.topics for part in topic.partitions)

    def copier(self, group: bool) -> str:
        """It copies in transactions, of which it aborts some; a copy has every message once and in order."""
        source, target = f"source-{group}", f"target-{group}"
        wanted = self.fill(source, 1)
        create(self.broker.address, target)
        words = [
            "--broker-list",
            self.broker.address,
            "--input-topic",
            source,
            "--input-partition",
            "0",
            "--output-topic",
            target,
        ]
        words += ["--consumer-group", source, "--transactional-id", source, "--transaction-size", "100"]
        words += ["--enable-random-aborts", "--transaction-timeout", "10000", "--use-group-metadata"]
        words += ["--group-mode"] if group else []
        restarts, killed = 0, 0
        deadline = time.monotonic() + RUN_S
        while True:  # as Kafka's system tests do: it is started again until nothing remains
            assert time.monotonic() < deadline, "it does not get to the end"
            with self.program(f"{TOOLS}.TransactionalMessageCopier", *words) as program:
                for _ in range(2 - killed):
                    at = self.messages * (killed + 1) // 4
                    program.until(
                        lambda facts, at=at, ended=program: copied(facts) >= at or ended.process.poll() is not None,
                        "some is copied",
                    )
                    self.kill()
                    killed += 1
                try:
                    program.process.wait(RUN_S)
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"it does not end: {program.out.read_text()[-500:]}") from None
                facts = program.facts()
            assert facts, "it prints nothing"
            if program.process.returncode == 0 and facts[-1].get("remaining") == 0:
                break
            restarts += 1
        got = [value for _, value in stored(self.broker.address, target)[0]]
        assert got == wanted[0], f"{len(got)} messages, {len(set(got))} different, {len(wanted[0])} expected"
        return f"{len(got)} copied, {killed} kills, started again {restarts} times"

    def streams(self) -> str:
        """A count per key and partition: each of 1, 2, 3, … is written exactly once, whatever dies in between."""
        classes = self.compiled(HERE / "streams" / "Counts.java")
        wanted = Counter((number % KEYS, number % PARTITIONS) for number in range(self.messages))
        create(self.broker.address, "counts", PARTITIONS)
        self.fill("in", PARTITIONS)
        arguments = (self.broker.address, "counting", str(self.run.folder / "state"))

        def written() -> dict[int, list[tuple[int, bytes]]]:
            return stored(self.broker.address, "counts", PARTITIONS)

        with self.program("Counts", *arguments, classes=classes) as program:
            self.grown(written, self.messages // 5)
            self.kill()
            self.grown(written, self.messages * 2 // 5)
            program.process.kill()  # the application itself, too
            program.process.wait()
        with self.program("Counts", *arguments, classes=classes):
            self.grown(written, self.messages * 3 // 5)
            self.kill()
            self.grown(written, self.messages)
        # A key is counted in each partition on its own: 1, 2, … to its number there.
        got = Counter(int(value) for entries in written().values() for _, value in entries)
        expected = Counter(count for most in wanted.values() for count in range(1, most + 1))
        assert got == expected, (
            f"counts that are wrong: {dict(list((got - expected).items())[:5])}, missing {sum((expected - got).values())}"
        )
        return f"{self.messages} counted"

    def commands(self) -> str:
        """What administrators type."""
        bounds = self.run.folder / "bounds.json"
        bounds.write_text('{"version": 1, "partitions": [{"topic": "typed", "partition": 0, "offset": 3}]}')
        create(self.broker.address, "typed")
        producer = Producer({"bootstrap.servers": self.broker.address, **QUICK})
        for number in range(10):
            producer.produce("typed", b"%d" % number, partition=0)
        assert producer.flush(20) == 0
        self.share("sharing")
        for line, expected in COMMANDS.items():
            name, *words = line.format(at=f"--bootstrap-server {self.broker.address}", bounds=bounds).split()
            with self.program(f"{TOOLS}.{name}", *words) as program:
                code = program.process.wait(RUN_S)
                said = " ".join(program.out.read_text().split())
            assert code == 0 and expected in said, f"{line}: expected {expected!r}, got ({code}) {said[-800:]!r}"
        return f"{len(COMMANDS)} of them"

    def grown(self, written: Callable[[], dict[int, list[tuple[int, bytes]]]], count: int) -> None:
        """Wait until so many are written and committed."""
        deadline = time.monotonic() + RUN_S
        while (there := sum(map(len, written().values()))) < count:
            assert time.monotonic() < deadline, f"{there} of {count} are written after {RUN_S:.0f} s"
            time.sleep(0.3)


def copied(facts: list[dict[str, Any]]) -> int:
    """How many messages a copier says to have consumed."""
    return max((int(each.get("consumed", 0)) for each in facts), default=0)
