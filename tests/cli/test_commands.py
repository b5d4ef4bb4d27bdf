"""The commands on a real log and a real database: what they print for people, and for programs."""

import io
import json
import sys
import threading

import pytest

from millstream.cli import main
from millstream.client import admin
from millstream.client.lag import commit
from millstream.client.producer import producer
from millstream.client.status import Reporter
from tests.brokers import fresh, running_broker

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def run(kafka, capsys, monkeypatch, tmp_path):
    """Run a command in this process; gives what it printed. `fails`: it must, and gives the message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_KAFKA", kafka.bootstrap)

    def run(*arguments, fails=False, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as end:
            main(arguments)
        printed = capsys.readouterr()
        assert (end.value.code or 0) == (1 if fails else 0), printed.err
        return printed.err if fails else printed.out

    return run


@pytest.fixture
def topic(kafka):
    name = fresh("departures")
    admin.ensure_topic(kafka, name, 2, {"retention.ms": "86400000"})
    return name


FLIGHTS = [
    {"tailnum": "N1", "origin": "JFK", "delay": 130},
    {"tailnum": "N2", "origin": "EWR", "delay": 200},
    {"tailnum": "N1", "origin": "JFK", "delay": 10},
    {"tailnum": None, "origin": "LGA", "delay": None},
]
LINES = b"".join(json.dumps(f).encode() + b"\n" for f in FLIGHTS) + b"\n"


def test_a_topic_is_made_listed_shown_and_deleted(run):
    name = fresh("made")
    assert run("topics", "create", name, "--partitions", "3", "--config", "cleanup.policy=compact") == (
        f"created {name} with 3 partitions: cleanup.policy=compact\n"
    )
    assert "exists already" in run("topics", "create", name, fails=True)
    assert any(line.split() == [name, "3", "0", "cleanup.policy=compact"] for line in run("topics").splitlines())
    facts = json.loads(run("topics", name, "--json"))
    assert facts["config"] == {"cleanup.policy": "compact"}
    assert [p["end"] for p in facts["partitions"]] == [0, 0, 0]
    assert "add --yes" in run("topics", "delete", name, fails=True)
    assert run("topics", "delete", name, "--yes") == f"deleted {name}\n"
    assert f"there is no topic '{name}'" in run("topics", name, fails=True)
    assert name not in [t["name"] for t in json.loads(run("topics", "--json"))]


def test_wrong_words(run):
    assert "expected a topic's name" in run("topics", "create", fails=True)
    assert "expected --config NAME=VALUE" in run("topics", "create", "x", "--config", "y", fails=True)
    assert "expected a topic's name, `create NAME` or `delete NAME`" in run("topics", "a", "b", "c", fails=True)


def test_lines_become_messages_and_come_back(run, topic):
    assert run("produce", topic, "--key-field", "tailnum", "--header", "from=test", given=LINES) == (
        f"4 messages written to {topic}\n"
    )
    lines = run("tail", topic, "--from", "earliest", "--no-follow", "--json").splitlines()
    messages = [json.loads(line) for line in lines]
    assert sorted((m["value"]["delay"] or 0) for m in messages) == [0, 10, 130, 200]
    assert {m["key"] for m in messages if m["value"]["tailnum"] == "N1"} == {"N1"}
    assert {m["key"] for m in messages if m["value"]["tailnum"] is None} == {None}
    assert messages[0]["headers"] == {"from": "test"}
    assert len({m["partition"] for m in messages if m["key"] == "N1"}) == 1
    assert messages[0]["timestamp"].endswith("Z")


def test_what_was_acknowledged_is_said(run, topic):
    lines = run("produce", topic, "--keyed", "--json", given=b"a\t1\nb\t\n").splitlines()
    assert sorted(json.loads(line)["key"] for line in lines) == ["a", "b"]
    found = [
        json.loads(line) for line in run("tail", topic, "--from", "earliest", "--no-follow", "--json").splitlines()
    ]
    assert {m["key"]: m["value"] for m in found} == {"a": 1, "b": None}


def test_a_file_may_be_given(run, topic, tmp_path):
    (tmp_path / "flights.jsonl").write_bytes(LINES)
    assert run("produce", topic, "--file", "flights.jsonl", "--partition", "1").startswith("4 messages")
    assert {line.split(":")[0] for line in run("tail", topic, "--from", "0", "--no-follow").splitlines()} == {"1"}
    assert "cannot be read: No such file" in run("produce", topic, "--file", "nowhere", fails=True)


@pytest.mark.parametrize(
    ("arguments", "given", "complaint"),
    [
        (["--key-field", "x"], b'{"y": 1}\n', "line 1: expected a JSON object with the field 'x'"),
        (["--key-field", "x"], b"\nnot json\n", "line 2: expected a JSON object"),
        (["--keyed"], b"no tab\n", "line 1: expected KEY, a tab and VALUE"),
        (["--keyed", "--key-field", "x"], b"", "got both"),
        (["--partition", "9"], b"", "has the partitions 0 to 1, not 9"),
        (["--header", "x"], b"", "expected --header NAME=VALUE"),
    ],
)
def test_lines_that_are_no_messages(run, topic, arguments, given, complaint):
    assert complaint in run("produce", topic, *arguments, given=given, fails=True)


def test_writing_to_no_topic_makes_none(run):
    assert "there is no topic 'nowhere'" in run("produce", "nowhere", given=LINES, fails=True)
    assert "nowhere" not in run("topics", "--all")


def test_tail_filters_and_limits(run, topic):
    run("produce", topic, given=LINES + b"not json\n[1]\n")
    everything = run("tail", topic, "--from", "earliest", "--no-follow").splitlines()
    assert len(everything) == 6
    assert any(line.endswith("not json") for line in everything)
    late = run("tail", topic, "--from", "1 hour ago", "--no-follow", "--filter", 'delay > 120 and origin == "JFK"')
    assert late.count("\n") == 1
    assert '"delay": 130' in late
    assert run("tail", topic, "--from", "earliest", "--filter", "delay > 0", "--limit", "3").count("\n") == 3
    assert run("tail", topic, "--from", "-1", "--no-follow", "--partition", "0").count("\n") <= 1
    assert run("tail", topic, "--no-follow") == ""


def test_tail_shows_control_characters(run, topic):
    run("produce", topic, "--keyed", given=b"k\x1b[31m\tv\x07\n")
    assert "k\\x1b[31m v\\x07" in run("tail", topic, "--from", "earliest", "--no-follow")


def test_tail_follows(run, topic, kafka):
    client = producer(kafka)
    timer = threading.Timer(0.5, lambda: (client.produce(topic, value=b'{"n": 1}'), client.flush(30)))
    timer.start()
    assert '{"n": 1}' in run("tail", topic, "--from", "earliest", "--limit", "1")
    timer.join()


def test_groups_show_their_lag(run, topic, kafka):
    run("produce", topic, "--partition", "1", given=LINES)
    app = fresh("app")
    commit(kafka, f"{app}.late", {(topic, 0): 0, (topic, 1): 1})
    commit(kafka, f"{app}x.late", {(topic, 0): 0})
    assert [line.split() for line in run("groups", "--app", app).splitlines()] == [
        ["group", "state", "topics", "lag"],
        [f"{app}.late", "empty", topic, "3"],
    ]
    assert json.loads(run("groups", "--app", app, "--json"))[0]["lag"] == 3
    shown = run("groups", f"{app}.late").splitlines()
    assert shown[0] == f"{app}.late: empty, 3 events behind"
    assert shown[-1].split() == [topic, "1", "1", "4", "3"]
    assert json.loads(run("groups", f"{app}.late", "--json"))["partitions"][1]["lag"] == 3
    assert "there is no group 'nobody'" in run("groups", "nobody", fails=True)
    assert f"lag of {app}.late" in run("topics", topic)
    assert json.loads(run("topics", topic, "--json"))["groups"][0]["group"] in (f"{app}.late", f"{app}x.late")


def test_queries_show_what_they_report(run, topic, kafka):
    app, other = fresh("app"), fresh("other")
    run("produce", topic, "--partition", "1", given=LINES)
    commit(kafka, f"{app}.late", {(topic, 1): 2})
    facts = {
        "state": "running",
        "mode": "realtime",
        "rows_per_second": 12.5,
        "input_rows": 1000,
        "watermark": None,
        "dropped": 0,
    }
    with Reporter(kafka, app) as reporter, Reporter(kafka, other) as another:
        reporter.report("query", "late", **facts, offsets={topic: {"0": 0}}, error=None)
        reporter.report("process", "spark", state="running")
        another.report("query", "late", state="failed", error="bad\nlong trace", offsets={})
    lines = run("queries", "--app", app).splitlines()
    assert lines[1].split() == [app, "late", "running", "realtime", "12.50", "1,000", "0", "2"]
    assert {q["app"] for q in json.loads(run("queries", "--json"))} >= {app, other}
    assert "bad" in run("queries", "--app", other)
    assert "rows_per_second" in run("queries", f"{app}.late")
    assert "no query 'nobody'" in run("queries", "nobody", fails=True)
    assert [t["name"] for t in json.loads(run("topics", "--app", app, "--json"))] == [topic]


def test_the_log_that_runs_here_is_found(run, kafka, monkeypatch, tmp_path):
    """Without an address, the one in run.json of the data folder counts, while its supervisor holds the folder."""
    from millstream.run.lock import Lock
    from millstream.run.runfile import Running

    monkeypatch.delenv("MILLSTREAM_KAFKA")
    data = tmp_path / ".millstream"
    data.mkdir()
    lock = Lock(data)
    Running("run", "flights", 1, kafka=kafka.bootstrap).write(data)
    try:
        name = fresh("made")
        run("topics", "create", name)
        assert name in admin.topic_names(kafka)
        assert name in run("topics", "--data", str(data))
    finally:
        lock.release()
