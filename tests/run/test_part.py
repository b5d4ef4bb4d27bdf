"""The order between parts, by values."""

import pytest

from millstream.app.process import Process
from millstream.run.part import Step, arrange
from millstream.settings import MillstreamError


def process(name, *needs, kind=""):
    return Process(name, ("true",), frozenset(needs), kind=kind)


def order(*parts):
    return [p.name for p in arrange(parts).parts]


def test_what_is_needed_comes_first_and_the_given_order_holds_otherwise():
    assert order(process("serve"), process("spark", "broker"), process("broker")) == ["serve", "broker", "spark"]


def test_a_step_stands_between():
    fill = Step("fill", ("true",), after={"postgres"}, before={"capture"})
    parts = [process("capture"), process("postgres"), fill]
    assert order(*parts) == ["postgres", "fill", "capture"]
    assert arrange(parts).needs["capture"] == {"fill"}


def test_a_kind_stands_for_all_of_it():
    arranged = arrange(
        [process("spark", "capture"), process("capture-a", kind="capture"), process("capture-b", kind="capture")]
    )
    assert arranged.needs["spark"] == {"capture-a", "capture-b"}


def test_dependents_and_foundations_are_found_over_all_levels():
    arranged = arrange(
        [process("broker"), process("capture", "broker"), process("spark", "capture"), process("postgres")]
    )
    assert arranged.dependents("broker") == {"capture", "spark"}
    assert arranged.dependents("spark") == frozenset()
    assert arranged.foundations("spark") == {"broker", "capture"}


def test_mistakes_are_named():
    with pytest.raises(MillstreamError, match="two parts named 'broker'"):
        arrange([process("broker"), process("broker")])
    with pytest.raises(MillstreamError, match=r"'spark' names 'brocker' in its order.*there are broker"):
        arrange([process("broker"), process("spark", "brocker")])
    with pytest.raises(MillstreamError, match="wait for each other: a, b"):
        arrange([process("a", "b"), process("b", "a"), process("c")])
    with pytest.raises(ValueError, match="either a command or a function"):
        Step("empty")
