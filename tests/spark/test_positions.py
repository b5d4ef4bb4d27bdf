"""Topics that come, go and are made again: which positions stay."""

import json

import pytest

from millstream.settings import Kafka, MillstreamError
from millstream.spark import positions
from millstream.spark.positions import Change, compare, keep, moved

ONE = [{"a": {"0": 5, "1": 7}, "b": {"0": 3}}]
KAFKA = Kafka("a:1")


def test_nothing_changed():
    assert not compare(ONE, {"a": "A", "b": "B"}, {"a": "A", "b": "B"})
    assert not compare([], {}, {"a": "A"})
    assert not compare(ONE, {}, {"a": "A", "b": "B"})  # a checkpoint of an earlier version: names alone


def test_gone_again_and_new():
    change = compare(ONE, {"a": "A", "b": "B"}, {"a": "other", "c": "C"})
    assert change == Change(frozenset({"b"}), frozenset({"a"}), frozenset({"c"}))


def test_moved_positions():
    assert moved(ONE, Change(gone=frozenset({"b"})), {}) == [{"a": {"0": 5, "1": 7}}]
    again = Change(again=frozenset({"a"}))
    assert moved(ONE, again, {("a", 0): 0, ("a", 1): 2}) == [{"a": {"0": 0, "1": 2}, "b": {"0": 3}}]


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A checkpoint whose last finished batch is 1, of three that were planned, in a log of which a test says the topics' ids."""
    folder = tmp_path / "checkpoints" / "app" / "q"
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    for batch in range(3):
        (folder / "offsets" / str(batch)).write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"a": {"0": batch}, "b": {"0": 9}})}'
        )
    for batch in range(2):
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    monkeypatch.setattr(positions, "identities", lambda kafka, topics: {t: ids[t] for t in topics})
    monkeypatch.setattr(positions, "start_offsets", lambda kafka, topics: {(t, 0): 4 for t in topics})
    ids = {"a": "A", "b": "B"}
    return folder, ids


def kept(folder, topics, *, state=False):
    keep(KAFKA, folder, topics, "stream 'q'", state=state, aside=folder.parents[2] / "replaced" / "app" / "q")
    return json.loads((folder / "topics.json").read_text())["topics"]


def initial(folder):
    return json.loads((folder / "sources" / "0" / "0").read_bytes().removeprefix(b"\0v1\n"))


def test_a_checkpoint_stays_when_nothing_changed(checkpoint):
    folder, _ = checkpoint
    assert kept(folder, ["a", "b"]) == {"a": "A", "b": "B"}
    assert kept(folder, ["a", "b"], state=True) == {"a": "A", "b": "B"}
    assert positions.positions(folder) == [{"a": {"0": 1}, "b": {"0": 9}}]


def test_a_topic_that_is_gone_takes_nothing_with_it(checkpoint):
    folder, _ = checkpoint
    kept(folder, ["a", "b"])
    assert kept(folder, ["a"]) == {"a": "A"}
    assert initial(folder) == {"a": {"0": 1}}
    [aside] = (folder.parents[2] / "replaced" / "app").iterdir()
    assert (aside / "offsets" / "2").exists()


def test_a_topic_made_again_is_read_from_its_start(checkpoint):
    folder, ids = checkpoint
    kept(folder, ["a", "b"])
    ids["a"] = "another"
    assert kept(folder, ["a", "b"]) == {"a": "another", "b": "B"}
    assert initial(folder) == {"a": {"0": 4}, "b": {"0": 9}}


def test_a_query_with_state_says_what_to_do(checkpoint):
    folder, ids = checkpoint
    kept(folder, ["a", "b"])
    ids["a"] = "another"
    with pytest.raises(
        MillstreamError, match=r"stream 'q': the topic 'a' was deleted and made again.*groups reset app\.q"
    ):
        kept(folder, ["a", "b"], state=True)
    with pytest.raises(MillstreamError, match="it no longer reads 'b'"):
        kept(folder, ["a"], state=True)
    ids |= {"a": "A", "c": "C"}
    with pytest.raises(MillstreamError, match="it now reads 'c' too"):
        kept(folder, ["a", "b", "c"], state=True)
    assert (folder / "offsets" / "2").exists()


def test_a_crash_between_the_two_renames(checkpoint):
    folder, _ = checkpoint
    kept(folder, ["a", "b"])
    kept(folder, ["a"])
    folder.rename(folder.with_name(".q.new"))
    assert kept(folder, ["a"]) == {"a": "A"}
    assert initial(folder) == {"a": {"0": 1}}


def test_a_file_of_another_version(checkpoint):
    folder, _ = checkpoint
    (folder / "topics.json").write_text('{"version": 2, "topics": {}}')
    with pytest.raises(MillstreamError, match="is of version 2, expected 1"):
        kept(folder, ["a", "b"])
