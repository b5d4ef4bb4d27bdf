"""A query that is moved: the marker, the old checkpoint put aside, the new one."""

import contextlib
import json

import pytest

from millstream.settings import MillstreamError, Settings, files
from millstream.spark import replay

OFFSETS = {("departures", 0): 7, ("departures", 1): 0, ("arrivals", 0): 3}


@pytest.fixture
def old(tmp_path):
    """A checkpoint that a query has left."""
    folder = replay.checkpoint(Settings(data=tmp_path), "flights", "late")
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "old"}')
    return folder


def initial(folder):
    content = (folder / "sources" / "0" / "0").read_bytes()
    assert content[:4] == b"\0v1\n"
    return json.loads(content[4:])


def aside(data):
    return sorted((data / "replaced" / "flights").iterdir()) if (data / "replaced" / "flights").exists() else []


def test_without_a_marker_nothing_happens(tmp_path, old):
    assert replay.obey(Settings(data=tmp_path), "flights") == {}
    assert (old / "metadata").exists()


def test_the_query_begins_again_and_its_past_is_kept(tmp_path, old):
    replay.mark(tmp_path, "flights", "late", OFFSETS)
    assert replay.obey(Settings(data=tmp_path), "other") == {}
    assert replay.obey(Settings(data=tmp_path), "flights") == {"late": OFFSETS}
    assert initial(old) == {"departures": {"0": 7, "1": 0}, "arrivals": {"0": 3}}
    assert [p.name for p in old.iterdir()] == ["sources"]
    [kept] = aside(tmp_path)
    assert kept.name.startswith("late-20")
    assert (kept / "metadata").read_text() == '{"id": "old"}'
    assert replay.obey(Settings(data=tmp_path), "flights") == {}


def test_what_retention_has_taken_meanwhile_is_not_asked_for(tmp_path):
    replay.mark(tmp_path, "flights", "late", OFFSETS)
    asked = []

    def starts(topics):
        asked.append(topics)
        return {("departures", 0): 9, ("departures", 1): 0}

    assert replay.obey(Settings(data=tmp_path), "flights", starts)["late"] == {**OFFSETS, ("departures", 0): 9}
    assert asked == [{"departures", "arrivals"}]


def test_the_last_marker_counts(tmp_path, old):
    replay.mark(tmp_path, "flights", "late", OFFSETS)
    replay.mark(tmp_path, "flights", "late", {("departures", 0): 1})
    assert replay.obey(Settings(data=tmp_path), "flights") == {"late": {("departures", 0): 1}}


def test_a_query_that_has_never_run_may_be_placed(tmp_path):
    replay.mark(tmp_path, "flights", "late", OFFSETS)
    replay.obey(Settings(data=tmp_path), "flights")
    assert initial(replay.checkpoint(Settings(data=tmp_path), "flights", "late"))["arrivals"] == {"0": 3}
    assert aside(tmp_path) == []


@pytest.mark.parametrize("steps", range(12))
def test_a_crash_between_any_two_steps_does_no_harm(tmp_path, old, steps, monkeypatch):
    """Every file operation that changes a folder may be the last one before the crash."""
    replay.mark(tmp_path, "flights", "late", OFFSETS)
    left = [steps]

    def sync(folder):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        for module in (replay, files):
            patched.setattr(module, "sync_folder", sync)
        with contextlib.suppress(KeyboardInterrupt):
            replay.obey(Settings(data=tmp_path), "flights")
    replay.obey(Settings(data=tmp_path), "flights")
    assert initial(old)["departures"] == {"0": 7, "1": 0}
    assert [p.name for p in old.iterdir()] == ["sources"]
    [kept] = aside(tmp_path)
    assert (kept / "metadata").read_text() == '{"id": "old"}'


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "at": "x", "offsets": {}}'])
def test_a_marker_that_cannot_be_read_stops_the_start(tmp_path, content):
    path = replay.mark(tmp_path, "flights", "late", OFFSETS)
    path.write_text(content)
    with pytest.raises(MillstreamError, match=r"late\.json cannot be read .* Remove it to go on"):
        replay.obey(Settings(data=tmp_path), "flights")


def test_which_groups_are_queries(tmp_path, old):
    assert replay.query_of(Settings(data=tmp_path), "flights.late") == ("flights", "late")
    assert replay.query_of(Settings(data=tmp_path), "flights.late.deliver") is None
    assert replay.query_of(Settings(data=tmp_path), "flights.other") is None
    assert replay.query_of(Settings(data=tmp_path), "flights") is None
    assert replay.query_of(Settings(data=tmp_path), "flights.../late") is None


def test_checkpoints_with_a_folder_of_their_own_stay_on_its_disk(tmp_path):
    settings = Settings(data=tmp_path / "data", checkpoints=tmp_path / "shared")
    old = replay.checkpoint(settings, "flights", "late")
    assert old == tmp_path / "shared" / "flights" / "late"
    old.mkdir(parents=True)
    (old / "metadata").write_text("old")
    replay.mark(settings.data, "flights", "late", OFFSETS)
    assert replay.query_of(settings, "flights.late") == ("flights", "late")
    assert replay.obey(settings, "flights") == {"late": OFFSETS}
    assert initial(old)["arrivals"] == {"0": 3}
    [aside] = (tmp_path / "shared" / ".replaced" / "flights").iterdir()
    assert (aside / "metadata").read_text() == "old"
