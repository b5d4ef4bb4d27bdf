"""The event on which a function fails, found by halving."""

import pytest

from millstream.spark import culprit
from millstream.spark.culprit import halve


@pytest.mark.parametrize("bad", [10, 11, 500, 998, 999])
def test_the_first_event_that_fails(bad):
    runs = []

    def fails(part):
        runs.append(part)
        _, partition, begin, end = part
        return partition == 1 and begin <= bad < end

    assert halve([("t", 0, 0, 400), ("t", 1, 10, 1000)], fails) == ("t", 1, bad, bad + 1)
    assert len(runs) < 15


def test_of_several_the_first():
    assert halve([("t", 0, 0, 100)], lambda part: any(part[2] <= b < part[3] for b in (70, 30, 31))) == ("t", 0, 30, 31)


def test_nothing_fails_alone():
    assert halve([("t", 0, 0, 8)], lambda part: False) is None
    assert halve([], lambda part: True) is None


def test_it_gives_up(monkeypatch):
    monkeypatch.setattr(culprit, "MAX_RUNS", 3)
    assert halve([("t", 0, 0, 1000)], lambda part: part[2] <= 5 < part[3]) is None
