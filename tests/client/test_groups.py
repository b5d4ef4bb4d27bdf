"""A broker that has just started is waited for, but not for ever; real refusals are told at once."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client import groups
from millstream.client.connect import explain
from millstream.settings import Kafka, MillstreamError

KAFKA = Kafka("log:9092")


def failing(*codes):
    """An action that fails with one code after the other, and then returns "done"."""
    left = list(codes)

    def act():
        if not left:
            return "done"
        error = KafkaError(left.pop(0))
        raise explain(error, KAFKA, "it cannot") from KafkaException(error)

    return act


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(groups, "_AGAIN_S", 0.001)


def test_a_coordinator_that_loads_is_asked_again():
    codes = KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    assert groups._settled(failing(*codes)) == "done"


def test_one_that_never_comes_is_told(monkeypatch):
    monkeypatch.setattr(groups, "SETTLING_S", 0.01)
    with pytest.raises(MillstreamError, match="not ready yet; try again"):
        groups._settled(failing(*[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 1000))


def test_other_errors_are_told_at_once():
    act = failing(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(MillstreamError):
        groups._settled(act)
    assert act() == "done"
