"""Whether anybody looks decides how often servers are read."""

import threading
import time

import pytest

from millstream.serve import activity as module
from millstream.serve.activity import Activity


@pytest.fixture
def stop():
    return threading.Event()


def rest(activity, *arguments):
    """Rest in a thread; returns a function that waits for its end and gives what `rest` returned."""
    found = []
    thread = threading.Thread(target=lambda: found.append(activity.rest(*arguments)), daemon=True)
    thread.start()

    def end(seconds=5):
        thread.join(seconds)
        return found[0] if found else None

    return end


def test_nobody_looks_until_a_stream_or_a_request(stop, monkeypatch):
    activity = Activity(stop)
    assert not activity.looking
    activity.watch(+1)
    assert activity.looking
    monkeypatch.setattr(module, "LOOKING_S", 0.0)
    activity.watch(-1)
    assert not activity.looking
    monkeypatch.setattr(module, "LOOKING_S", 60.0)
    activity.touch()
    assert activity.looking


def test_a_reader_that_sleeps_is_woken_by_who_looks(stop):
    activity = Activity(stop)
    end = rest(activity, 0.01, None)
    assert end(0.2) is None
    activity.touch()
    assert end() is True


def test_a_reader_goes_on_at_its_idle_pace(stop):
    assert rest(Activity(stop), 60, 0.05)() is True


def test_the_end_wakes_everybody(stop):
    activity = Activity(stop)
    end = rest(activity, 60, None)
    stop.set()
    activity.wake()
    assert end() is False
    assert activity.ended


def test_looking_paces_readers(stop):
    activity = Activity(stop)
    activity.watch(+1)
    began = time.monotonic()
    assert activity.rest(0.05, None)
    assert 0.05 <= time.monotonic() - began < 5
