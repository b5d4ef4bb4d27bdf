"""Crashing at every place where it may hurt, and killing without warning: what was acknowledged is there afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.log import Log, failpoints, verify
from tests.log.logs import NOW, batch, consume, keyed, open_log, state, values

pytestmark = pytest.mark.system

COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
RING = {"internal.segment.bytes": "500", "retention.bytes": "1500"}


def scenario(folder: Path, say) -> None:
    """Everything that has a failpoint, in a fixed order; `say` tells the parent what has been acknowledged."""
    log = open_log(folder)
    say("open")
    for name, config in (("table", COMPACTED), ("ring", RING), ("plain", {}), ("gone", {})):
        log.create(name, 1, config)
        say("created", name)
    table, ring, plain = (log.topics[n].partitions[0] for n in ("table", "ring", "plain"))
    for turn in range(4):
        say("producer id", log.next_producer_id())
        for i in range(30):
            key, value = f"k{i % 7}", f"{turn}-{i}"
            table.append(keyed((key.encode(), None if i % 7 == turn else value.encode())), NOW)
            say("put", key, None if i % 7 == turn else value)
            ring.append(batch(b"%d" % ring.end_offset), NOW)
            say("ring", ring.end_offset)
            data = batch(value.encode(), producer_id=1, producer_epoch=0, base_sequence=turn * 30 + i)
            plain.append(data, NOW)
            say("plain", value)
        while log.maintain(NOW):
            pass
        say("maintained")
        plain.checkpoint()
        say("deleted before", ring.delete_before(ring.end_offset - 3))
        log.configure("plain", {"retention.ms": str(1_000_000_000 + turn)})
        say("configured", 1_000_000_000 + turn)
        log.add_partitions("plain", turn + 2)
        say("partitions", turn + 2)
        if turn == 1:
            log.delete("gone")
            say("deleted", "gone")
        if turn == 2:
            log.close()
            log = open_log(folder)
            table, ring, plain = (log.topics[n].partitions[0] for n in ("table", "ring", "plain"))
    log.close()
    say("closed")


def run_until(folder: Path, point: str | None, hit: int) -> tuple[list[list], int]:
    """The scenario in a child that ends at the `hit`-th time it reaches `point`; what it said, and its exit code."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(source)
            left = hit

            def trip() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)

            if point is not None:
                failpoints.tripped[point] = trip
            scenario(folder, lambda *what: os.write(target, json.dumps(what).encode() + b"\n"))
            code = 0
        finally:
            os._exit(code)
    os.close(target)
    with open(source) as lines:
        said = [json.loads(line) for line in lines]
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(folder: Path, said: list[list]) -> None:
    """What was said to be done has been done; at most the one thing that was under way has happened beyond it."""
    with open_log(folder) as log:
        heard = [what[1] for what in said if what[0] == "created"]
        gone = [what[1] for what in said if what[0] == "deleted"]
        assert set(heard) - {"gone"} <= set(log.topics)
        assert len(log.topics) <= len(heard) + 1
        assert not gone or "gone" not in log.topics
        used = [what[1] for what in said if what[0] == "producer id"]
        assert len(used) == len(set(used))
        assert log.next_producer_id() > max(used, default=-1)
        if "table" in log.topics:
            table = log.topics["table"].partitions[0]
            puts = [what[1:] for what in said if what[0] == "put"]
            model = {k.encode(): v for k, v in puts}
            found = state(consume(table))
            different = {k for k in {*model, *found} if (model.get(k) or "").encode() != found.get(k, b"")}
            assert len(different) <= 1 and table.end_offset - len(puts) in (0, 1)
            assert not different or table.end_offset == len(puts) + 1
        if "ring" in log.topics:
            ring = log.topics["ring"].partitions[0]
            end = max((what[1] for what in said if what[0] == "ring"), default=0)
            start = max((what[1] for what in said if what[0] == "deleted before"), default=0)
            assert ring.end_offset in (end, end + 1)
            assert ring.start_offset >= start
            assert values(consume(ring)) == [b"%d" % i for i in range(ring.start_offset, ring.end_offset)]
            assert ring.start_offset < ring.end_offset or ring.end_offset == 0
        if "plain" in log.topics:
            topic = log.topics["plain"]
            plain = topic.partitions[0]
            sent = [what[1].encode() for what in said if what[0] == "plain"]
            found = values(consume(plain))
            assert found[: len(sent)] == sent and len(found) <= len(sent) + 1
            if found:
                again = batch(found[-1], producer_id=1, producer_epoch=0, base_sequence=len(found) - 1)
                assert plain.append(again, NOW).duplicate
                assert not plain.append(batch(producer_id=1, producer_epoch=0, base_sequence=len(found)), NOW).duplicate
            partitions = max((what[1] for what in said if what[0] == "partitions"), default=1)
            assert len(topic.partitions) in (partitions, partitions + 1)
            configured = max((what[1] for what in said if what[0] == "configured"), default=604_800_000)
            assert topic.config.retention_ms in (configured, configured + 1, 1_000_000_000)
        while log.maintain(NOW):
            pass
        log.create("after", 1).partitions[0].append(batch(), NOW)
    assert verify(folder) == []
    left = [p for p in folder.rglob("*") if p.suffix in (".tmp", ".cleaned") or p.name == "compaction.json"]
    assert left == []
    assert list((folder / "building").iterdir()) == list((folder / "deleted").iterdir()) == []


def test_undisturbed(tmp_path):
    said, code = run_until(tmp_path / "log", None, 0)
    assert code == 0 and said[-1] == ["closed"]
    check(tmp_path / "log", said)


@pytest.mark.parametrize("hit", [1, 2, 7])
@pytest.mark.parametrize("point", [p for p in failpoints.ALL if p not in failpoints.ARCHIVING])  # see test_archive
def test_a_crash_at(point, hit, tmp_path):
    said, code = run_until(tmp_path / "log", point, hit)
    if code == 0:
        assert hit > 1, f"{point} is never reached"
    else:
        assert code == 9
    check(tmp_path / "log", said)


CHILD = """
import sys
from pathlib import Path
from millstream.log import Log
from millstream.protocol import records
log = Log(Path(sys.argv[1]))
topic = log.topics.get("t") or log.create("t", 1, {"internal.segment.bytes": "20000"})
partition = topic.partitions[0]
sequence = partition.end_offset
while True:
    data = records.build([(b"%d" % sequence, bytes(sequence % 700))], 1, producer_id=3, producer_epoch=0, base_sequence=sequence)
    print(partition.append(data, 1).base_offset, flush=True)
    if sequence % 50 == 0:
        log.maintain(1)
    sequence += 1
"""


def test_kill_a_process_that_appends(tmp_path):
    acknowledged = -1
    generator = random.Random(7)
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        wanted = acknowledged + generator.randint(1, 400)
        for line in child.stdout:
            assert int(line) == acknowledged + 1
            acknowledged = int(line)
            if acknowledged >= wanted:
                break
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
        child.stdout.close()
        child.wait()
        with Log(tmp_path / "log") as log:
            partition = log.topics["t"].partitions[0]
            found = consume(partition, max_bytes=100_000)
            assert [(r.offset, r.key, len(r.value or b"")) for r in found] == [
                (i, b"%d" % i, i % 700) for i in range(partition.end_offset)
            ]
            assert partition.end_offset - 1 in (acknowledged, acknowledged + 1)
            acknowledged = partition.end_offset - 1
    assert verify(tmp_path / "log") == []


def test_names_are_unique():
    assert len(set(failpoints.ALL)) == len(failpoints.ALL) > 15
