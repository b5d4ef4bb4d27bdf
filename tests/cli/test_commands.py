"""The commands on a real log and a real database: what they print for people, and for programs."""

import io
import json
import re
import sys
import threading

import pytest
from confluent_kafka import Consumer

from millstream.app.names import LAG
from millstream.cli import main
from millstream.client import admin
from millstream.client.groups import commit
from millstream.client.producer import producer
from millstream.monitor.lag import group_lag
from millstream.monitor.status import Reporter
from millstream.monitor.watch import Watcher
from millstream.monitor.watch import read as read_lag
from tests.brokers import fresh, running_broker, wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def run(kafka, capsys, monkeypatch, tmp_path):
    """Run a command in this process; gives what it printed. `fails`: it must (2: the usage), and gives the message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLSTREAM_KAFKA", kafka.bootstrap)

    def run(*arguments, fails=False, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as end:
            main(arguments)
        printed = capsys.readouterr()
        assert (end.value.code or 0) == int(fails), printed.err
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
    assert "Missing argument 'NAME'" in run("topics", "create", fails=2)
    assert "Missing argument 'NAME'" in run("groups", "reset", fails=2)
    assert "expected --config NAME=VALUE" in run("topics", "create", "x", "--config", "y", fails=True)
    assert "unexpected extra argument" in run("topics", "a", "b", "c", fails=2)


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


def test_tail_of_the_last_is_over_all_partitions(run, topic):
    run("produce", topic, "--partition", "0", given=b"1\n2\n3\n")
    run("produce", topic, "--partition", "1", given=b"4\n")
    shown = run("tail", topic, "--from", "-2", "--no-follow")
    assert [line.split()[-1] for line in shown.splitlines()] == ["3", "4"]
    assert run("tail", topic, "--from", "-3", "--limit", "1").split()[-1] == "2"
    assert run("tail", topic, "--from", "-3", "--partition", "0", "--limit", "1").split()[-1] == "1"


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
    head, line = (line.split() for line in run("groups", "--app", app).splitlines())
    assert head == ["group", "state", "topics", "lag", "bytes", "behind", "by", "loss", "in"]
    assert line[:6] == [f"{app}.late", "empty", topic, "3", "174", "B"]
    assert line[7:] == ["s"], "seconds behind, and no watcher that forecasts"
    [facts] = json.loads(run("groups", "--app", app, "--json"))
    assert (facts["lag"], facts["bytes"], facts["loss_in"]) == (3, 174, None)
    assert 0 <= facts["seconds"] < 30
    shown = run("groups", f"{app}.late").splitlines()
    assert shown[0] == f"{app}.late: empty, 3 events behind"
    assert shown[-1].split()[:6] == [topic, "1", "1", "4", "3", "174"]
    assert json.loads(run("groups", f"{app}.late", "--json"))["partitions"][1]["lag"] == 3
    assert "there is no group 'nobody'" in run("groups", "nobody", fails=True)
    assert f"lag of {app}.late" in run("topics", topic)
    assert json.loads(run("topics", topic, "--json"))["groups"][0]["group"] in (f"{app}.late", f"{app}x.late")


def test_groups_show_what_the_watcher_told(run, topic, kafka):
    run("produce", topic, "--partition", "1", given=LINES)
    group = fresh("group")
    commit(kafka, group, {(topic, 1): 1})
    with Watcher(kafka):
        wait_until(lambda: group in read_lag(kafka).lags, "the watcher told")
    assert re.search(r"(23 h 59 min|1 d)$", run("groups", group).rstrip()), "a retention of a day, less what has passed"
    client = producer(kafka)
    loss = {"kind": "loss", "group": group, "topic": topic, "partition": 1, "at": 0, "text": "three are gone"}
    loss |= {"id": 1, "first": 1, "until": 4, "possible": 4, "over": True}
    client.produce(LAG, key=f"loss/{group}/{topic}/1/1", value=json.dumps(loss))
    client.flush(30)
    assert "  1970-01-01T00:00:00Z three are gone" in run("groups", group)


def test_a_group_is_moved_only_when_asked_twice(run, topic, kafka):
    run("produce", topic, "--partition", "1", given=LINES)
    group = fresh("group")
    commit(kafka, group, {(topic, 0): 0, (topic, 1): 3})
    shown = run("groups", "reset", group, "--to-earliest").splitlines()
    assert [line.split() for line in shown[:3]] == [
        ["topic", "partition", "from", "to", "events"],
        [topic, "0", "0", "0", "+0"],
        [topic, "1", "3", "0", "-3"],
    ]
    assert shown[-1] == "Nothing was changed; add --execute to do it."
    assert {one.partition: one.committed for one in group_lag(kafka, group)} == {0: 0, 1: 3}
    run("groups", "reset", group, "--to-earliest", "--execute")
    assert {one.partition: one.committed for one in group_lag(kafka, group)} == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("aim", "after"),
    [
        (["--to-offset", "2"], 2),
        (["--to-offset", "99"], 4),
        (["--shift-by", "-1"], 2),
        (["--shift-by", "1"], 4),
        (["--to-latest"], 4),
        (["--to-datetime", "1 hour ago"], 0),
        (["--to-datetime", "2100-01-01"], 4),
        (["--by-duration", "PT1H"], 0),
        (["--by-duration", "2 days"], 0),
    ],
)
def test_where_a_group_may_go(run, topic, kafka, aim, after):
    run("produce", topic, "--partition", "1", given=LINES)
    group = fresh("group")
    commit(kafka, group, {(topic, 0): 0, (topic, 1): 3})
    facts = json.loads(run("groups", "reset", group, "--topic", f"{topic}:1", *aim, "--execute", "--json"))
    cut = aim[-1] == "99"
    assert facts["moves"] == [{"topic": topic, "partition": 1, "before": 3, "after": after, "cut": cut}]
    assert {one.partition: one.committed for one in group_lag(kafka, group)} == {0: 0, 1: after}


def test_moves_that_cannot_be(run, topic, kafka):
    group = fresh("group")
    assert "expected exactly one of --to-offset" in run("groups", "reset", group, fails=True)
    assert "got 2" in run("groups", "reset", group, "--to-latest", "--to-earliest", fails=True)
    assert "has committed no offsets; name the topics" in run("groups", "reset", group, "--to-latest", fails=True)
    assert "not 7" in run("groups", "reset", group, "--topic", f"{topic}:7", "--to-latest", fails=True)
    assert "no offset in" in run("groups", "reset", group, "--topic", topic, "--shift-by", "1", fails=True)
    assert "there is no group 'reset'" in run("groups", "show", "reset", fails=True)


def test_an_active_group_is_left_alone(run, topic, kafka):
    run("produce", topic, given=LINES)
    group = fresh("group")
    consumer = Consumer(kafka.client(group_id=group, auto_offset_reset="earliest", client_id="the reader"))
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1), "the consumer reads")
    consumer.commit(asynchronous=False)
    try:
        assert "--execute would be refused: it is stable, with the reader at 127.0.0.1" in run(
            "groups", "reset", group, "--to-earliest"
        )
        for words in (["reset", group, "--to-earliest", "--execute"], ["delete", group, "--yes"]):
            assert "because it is active: it is stable" in run("groups", *words, fails=True)
    finally:
        consumer.close()
    run("groups", "reset", group, "--to-earliest", "--execute")
    assert "add --yes" in run("groups", "delete", group, fails=True)
    assert run("groups", "delete", group, "--yes") == f"deleted {group}\n"
    assert "there is no group" in run("groups", "delete", group, "--yes", fails=True)


def test_a_query_is_moved_with_its_checkpoint(run, topic, kafka, tmp_path):
    from millstream.run.lock import Lock
    from millstream.run.runfile import Running
    from millstream.settings import Settings
    from millstream.spark import replay

    run("produce", topic, "--partition", "1", given=LINES)
    app = fresh("app").replace("-", "_")
    commit(kafka, f"{app}.late", {(topic, 0): 0, (topic, 1): 3})
    with Reporter(kafka, app) as reporter:
        reporter.report("query", "late", state="running")
        reporter.report("deliver", "late", state="running")
    commit(kafka, f"{app}.late.deliver", {(topic, 0): 0})
    moving = ("groups", "reset", f"{app}.late.deliver", "--to-latest", "--execute")
    assert "a delivery of" in run(*moving, fails=True)
    assert "whose checkpoint is not in" in run(
        "groups", "reset", f"{app}.late", "--to-earliest", "--execute", fails=True
    )
    data = tmp_path / ".millstream"
    replay.checkpoint(Settings(data=data), app, "late").mkdir(parents=True)
    shown = run("groups", "reset", f"{app}.late", "--topic", f"{topic}:1", "--to-offset", "1", "--execute")
    assert "begins there with a new Spark checkpoint" in shown
    assert replay.obey(Settings(data=data), app) == {"late": {(topic, 0): 0, (topic, 1): 1}}
    assert {one.partition: one.committed for one in group_lag(kafka, f"{app}.late")} == {0: 0, 1: 1}

    lock = Lock(data)
    Running("run", app, 1, addresses={"kafka": kafka.bootstrap}).write(data)
    try:
        reset = ("groups", "reset", f"{app}.late", "--to-latest", "--execute")
        assert "Add --at-next-start" in run(*reset, fails=True)
        run(*reset, "--at-next-start")
        assert {one.partition: one.committed for one in group_lag(kafka, f"{app}.late")} == {0: 0, 1: 1}
        assert replay.obey(Settings(data=data), app) == {"late": {(topic, 0): 0, (topic, 1): 4}}
        delivery = f"{app}.late.deliver"
        commit(kafka, delivery, {(topic, 0): 0})
        assert "end it first" in run("groups", "reset", delivery, "--to-latest", "--execute", fails=True)
    finally:
        lock.release()


def test_a_copy_of_a_query_may_begin_where_one_likes(run, topic, kafka, tmp_path):
    from millstream.settings import Settings
    from millstream.spark import replay

    run("produce", topic, "--partition", "1", given=LINES)
    app = fresh("app").replace("-", "_")
    words = ("groups", "reset", f"{app}.copy", "--topic", topic, "--to-offset", "2", "--execute", "--at-next-start")
    run(*words)
    assert replay.obey(Settings(data=tmp_path / ".millstream"), app) == {"copy": {(topic, 0): 0, (topic, 1): 2}}
    assert "is for queries" in run("groups", "reset", "billing", *words[3:], fails=True)


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
    Running("run", "flights", 1, addresses={"kafka": kafka.bootstrap}).write(data)
    try:
        name = fresh("made")
        run("topics", "create", name)
        assert name in admin.topic_names(kafka)
        assert name in run("topics", "--data", str(data))
    finally:
        lock.release()


def test_a_folder_knows_its_addresses_and_its_queries(run, kafka, topic, monkeypatch, tmp_path):
    """What the last run was given need not be repeated, and a query's topics are known before it has committed anything."""
    from millstream.app.graph import Graph
    from millstream.run.home import remember
    from millstream.settings import Settings

    monkeypatch.delenv("MILLSTREAM_KAFKA")
    data = tmp_path / ".millstream"
    (data / "checkpoints" / "shop" / "totals").mkdir(parents=True)
    app = fresh("shop").replace("-", "_")
    (data / "checkpoints" / app / "totals").mkdir(parents=True)
    remember(data, Graph(app, edges=((f"topic:{topic}", "query:totals"),)), Settings(kafka=kafka))
    assert topic in run("topics")
    shown = run("groups", "reset", f"{app}.totals", "--to-earliest")
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [[topic, "0"], [topic, "1"]]


def test_a_group_may_be_named_as_a_command(run, kafka, topic):
    commit(kafka, "reset", {(topic, 0): 0})
    assert "reset: empty" in run("groups", "show", "reset")
    assert run("groups", "--json", "show", "reset") == run("groups", "show", "reset", "--json")
    assert run("groups", "delete", "reset", "--yes") == "deleted reset\n"


def test_a_filter_that_cannot_pass_says_why(run, topic):
    run("produce", topic, given=LINES)
    reading = ("tail", topic, "--from", "earliest", "--no-follow", "--filter")
    assert "none of 4 events has the field 'dely' of the filter; did you mean 'delay'?" in run(
        *reading, "dely > 120", fails=True
    )
    assert "'delay > \"120\"' in the filter compares a number with a text" in run(*reading, 'delay > "120"', fails=True)
    assert run(*reading, "delay > 1000") == "", "nothing that passes is no mistake"


def test_a_message_that_is_too_large_is_said(run, topic):
    said = run("produce", topic, given=b"x" * 2_000_000 + b"\nsmall\n", fails=True)
    assert "1 messages were written" in said and "1 were not" in said and "too large" in said.lower()
