"""Connections: the settings of clients, and errors in words."""

import pytest
from confluent_kafka import KafkaError

from millstream.client.connect import Unreachable, config, explain
from millstream.settings import Kafka

KAFKA = Kafka("log:9092", {"security.protocol": "SASL_SSL", "client.id": "mine"})


def test_the_users_options_win_over_ours_and_the_callers_over_both():
    found = config(KAFKA, linger_ms=5, group_id="g")
    assert found["bootstrap.servers"] == "log:9092"
    assert found["security.protocol"] == "SASL_SSL"
    assert found["client.id"] == "mine"
    assert found["linger.ms"] == 5
    assert found["group.id"] == "g"
    assert config(Kafka("log:9092"))["client.id"] == "millstream"


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._TRANSPORT, Unreachable, "no Kafka broker answers at log:9092; start one with `millstream broker`"),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, Unreachable, "it cannot: .* not ready yet; try again"),
        (KafkaError._AUTHENTICATION, Exception, "refuses the connection: .* Check the user"),
        (KafkaError.POLICY_VIOLATION, Exception, "^it cannot: "),
    ],
)
def test_errors_say_what_to_do(code, kind, words):
    error = explain(KafkaError(code), KAFKA, "it cannot")
    assert isinstance(error, kind)
    with pytest.raises(kind, match=words):
        raise error
