"""The log as a whole: topics come and go, the folder has one owner, ids never repeat."""

import gc
import os
import resource
import subprocess
import sys
import textwrap
import uuid

import pytest

from millstream.log import InvalidConfig, Log, LogError, TopicExists, UnknownTopic
from millstream.log import log as logs
from millstream.log.errors import InvalidPartitions, InvalidTopic, LogLocked, UnknownFormat
from tests.log.logs import NOW, Clock, batch, consume, crash, fill, maintain, open_log, values


def test_the_example_in_the_docstring(tmp_path, capsys):
    import millstream.log

    example = textwrap.dedent(millstream.log.__doc__.split("`folder`:\n\n", 1)[1])
    exec(compile(example, "docstring", "exec"), {"folder": tmp_path / "log"})
    assert capsys.readouterr().out == "[b'hello', b'salut']\n"


def test_topics_come_back(tmp_path):
    with open_log(tmp_path / "log") as log:
        topic = log.create("a.b_c-D", 3, {"retention.ms": "5"})
        log.create("__consumer_offsets", 1)
        cluster = log.cluster_id
        assert log.topic(topic.id) is topic
    with open_log(tmp_path / "log") as log:
        assert log.recovered == []
        assert log.cluster_id == cluster and len(cluster) == 22
        again = log.topics["a.b_c-D"]
        assert (again.id, len(again.partitions), again.config.overrides) == (topic.id, 3, {"retention.ms": "5"})
        assert [p.index for p in again.partitions] == [0, 1, 2]
        assert log.topics["__consumer_offsets"].internal and not again.internal
        assert log.topic(uuid.uuid4()) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "a" * 250, "a\n"])
def test_names_that_kafka_refuses(tmp_path, name):
    with open_log(tmp_path / "log") as log, pytest.raises(InvalidTopic) as caught:
        log.create(name, 1)
    assert caught.value.code == 17


def test_what_create_refuses(tmp_path):
    with open_log(tmp_path / "log") as log:
        log.create("t", 1)
        for arguments, error, code in (
            (("t", 1), TopicExists, 36),
            (("u", 0), InvalidPartitions, 37),
            (("u", 10_001), InvalidPartitions, 37),
            (("u", 1, {"no.such": "1"}), InvalidConfig, 40),
        ):
            with pytest.raises(error) as caught:
                log.create(*arguments)
            assert caught.value.code == code
        assert list(log.topics) == ["t"]


def test_delete_and_create_again(tmp_path):
    with open_log(tmp_path / "log") as log:
        first = log.create("t", 1)
        fill(first.partitions[0], 5)
        log.delete("t")
        with pytest.raises(UnknownTopic):
            log.delete("t")
        assert log.topic(first.id) is None
        second = log.create("t", 1)
        assert second.id != first.id
        assert second.partitions[0].end_offset == 0
        assert list((tmp_path / "log" / "deleted").iterdir())
        maintain(log)
        assert not list((tmp_path / "log" / "deleted").iterdir())


def test_more_partitions(tmp_path):
    with open_log(tmp_path / "log") as log:
        topic = log.create("t", 1)
        log.add_partitions("t", 3)
        topic.partitions[2].append(batch(b"x"), NOW)
        for total in (3, 2, 0):
            with pytest.raises(InvalidPartitions):
                log.add_partitions("t", total)
    with open_log(tmp_path / "log") as log:
        assert values(consume(log.topics["t"].partitions[2])) == [b"x"]


def test_too_many_open_files(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_log(tmp_path / "log") as log:
        log.create("t", 1)
        gc.collect()  # files that earlier tests have left to it must not make room in between
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
        try:
            with pytest.raises(LogError, match="cannot be opened") as caught:
                log.create("large", 50)
            assert caught.value.code == 56
            with pytest.raises(LogError, match="cannot get more partitions"):
                log.add_partitions("t", 50)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert set(log.topics) == {"t"} and len(log.topics["t"].partitions) == 1
        log.add_partitions("t", 3)
        log.create("large", 5)
        maintain(log)
    with open_log(tmp_path / "log") as log:
        assert log.recovered == []
        assert {n: len(t.partitions) for n, t in log.topics.items()} == {"t": 3, "large": 5}


def test_configure(tmp_path):
    with open_log(tmp_path / "log", retention_ms="7") as log:
        topic = log.create("t", 1, {"segment.ms": "9"})
        log.configure("t", {"max.message.bytes": "100", "segment.ms": None})
        with pytest.raises(LogError, match=r"max.message.bytes allows 100"):
            topic.partitions[0].append(batch(bytes(100)), NOW)
        with pytest.raises(InvalidConfig):
            log.configure("t", {"retention.ms": "soon"})
        with pytest.raises(UnknownTopic):
            log.configure("u", {})
    with open_log(tmp_path / "log") as log:
        config = log.topics["t"].config
        assert config.overrides == {"max.message.bytes": "100"}
        assert config.retention_ms == 604_800_000


def test_producer_ids_never_repeat(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "PRODUCER_ID_BLOCK", 3)
    seen = []
    for ending in (crash, Log.close, crash, Log.close):
        log = open_log(tmp_path / "log")
        seen += [log.next_producer_id() for _ in range(4)]
        ending(log)
    assert seen == sorted(set(seen))


def test_one_owner_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LOCK_WAIT", 0.1)
    with open_log(tmp_path / "log"), pytest.raises(LogLocked, match=f"in use by process {os.getpid()}"):
        open_log(tmp_path / "log")
    open_log(tmp_path / "log").close()


def test_the_lock_goes_with_its_process(tmp_path):
    code = (
        "import sys; from millstream.log import Log; log = Log(sys.argv[1]); log.create('t', 1); "
        "print(1, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "log"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdin is not None
    child.stdout.readline()
    child.kill()
    # Opening waits for the lock that the dying process still holds.
    with open_log(tmp_path / "log") as log:
        assert list(log.topics) == ["t"]
    child.communicate()


def test_a_later_format_is_refused(tmp_path):
    open_log(tmp_path / "log").close()
    (tmp_path / "log" / "log.json").write_text('{"version": 2}')
    with pytest.raises(UnknownFormat, match="version 2, this Millstream knows 1"):
        open_log(tmp_path / "log")
    (tmp_path / "log" / "log.json").write_text('{"version": 1, "cluster_id": "x"}')
    log = open_log(tmp_path / "log")
    log.create("t", 1)
    log.close()
    (tmp_path / "log" / "topics" / "t" / "topic.json").write_text('{"version": 7}')
    with pytest.raises(UnknownFormat, match=r"topic.json has version 7"):
        open_log(tmp_path / "log")


@pytest.mark.parametrize("content", [None, "", "{", '{"version": 1}'])
def test_an_unreadable_topic_is_left_alone(tmp_path, content):
    with open_log(tmp_path / "log") as log:
        log.create("bad", 1)
        fill(log.create("good", 1).partitions[0], 3)
    path = tmp_path / "log" / "topics" / "bad" / "topic.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with open_log(tmp_path / "log") as log:
        assert list(log.topics) == ["good"]
        assert any("left alone" in note for note in log.recovered)
        with pytest.raises(LogError, match="in the way"):
            log.create("bad", 1)
    assert path.parent.is_dir()


def test_maintenance_takes_turns_and_survives_trouble(tmp_path, monkeypatch, caplog):
    with open_log(tmp_path / "log") as log:
        one, two = log.create("one", 1).partitions[0], log.create("two", 1).partitions[0]
        monkeypatch.setattr(one, "maintain", lambda now, share: (_ for _ in ()).throw(OSError("no")))
        done = []
        monkeypatch.setattr(two, "maintain", lambda now, share: done.append(now))
        log.maintain(NOW)
        assert done == [NOW]
        assert "one-0" in caplog.text


def test_producers_expire(tmp_path):
    with open_log(tmp_path / "log", producer_id_expiration_ms="1000") as log:
        partition = log.create("t", 1).partitions[0]
        partition.append(batch(producer_id=1, producer_epoch=0, base_sequence=0), NOW)
        partition.append(batch(producer_id=2, producer_epoch=0, base_sequence=0, transactional=True), NOW)
        log.maintain(NOW + 990)
        assert set(partition.producers) == {1, 2}
        log.maintain(NOW + 1000)
        assert set(partition.producers) == {2}


def test_closing_twice(tmp_path):
    log = Log(tmp_path / "log", clock=Clock())
    log.close()
    log.close()


def test_nothing_heavy_is_loaded():
    code = (
        "import sys, millstream.log; "
        "print([m for m in ('pandas', 'pyarrow', 'pyspark', 'asyncio', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
