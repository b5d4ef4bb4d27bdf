"""The client's properties in Java's names, and rows as messages."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from millstream.settings import Kafka, MillstreamError


def test_properties_in_javas_names(tmp_path):
    from millstream.spark.kafka import options

    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "c\\d",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": str(tmp_path / "cert.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "1000",
    }
    assert options(Kafka("h:1", given)) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="a\\"b" password="c\\\\d";'
        ),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CERT",
        "kafka.ssl.keystore.key": "KEY",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    assert options(Kafka("h:1")) == {"kafka.bootstrap.servers": "h:1"}


def test_a_mechanism_without_counterpart():
    from millstream.spark.kafka import options

    with pytest.raises(MillstreamError, match=r"SCRAM-SHA-512.*'GSSAPI'"):
        options(Kafka("h:1", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}))


@pytest.mark.system
def test_rows_as_messages(spark):
    from pyspark.sql import functions as F

    from millstream.spark.kafka import JSON_COLUMN, messages

    frame = spark.range(1).select(
        F.lit("é").alias("name"),
        F.lit(None).cast("string").alias("nothing"),
        F.lit(datetime(2013, 1, 1, 5, 0, 0, 123456, UTC)).alias("at"),
        F.lit(Decimal("1.50")).alias("amount"),
        F.lit(bytearray(b"\x00\x01")).alias("raw"),
        F.lit('{"a": [1]}').alias("deep", metadata={JSON_COLUMN: True}),
        F.expr("struct('t' as topic, 1 as partition, 7L as offset, current_timestamp() as timestamp)").alias("_origin"),
    )
    row = messages(frame, ("at",)).collect()[0]
    assert row.key == b"2013-01-01T05:00:00.123456Z"
    assert json.loads(row.value) == {
        "name": "é",
        "nothing": None,
        "at": "2013-01-01T05:00:00.123456Z",
        "amount": 1.5,
        "raw": "AAE=",
        "deep": {"a": [1]},
    }
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("origin", b"t-1-7")]
    plain = messages(frame.drop("_origin"), ())
    assert plain.columns == ["key", "value"]
    assert plain.collect()[0].key is None


@pytest.mark.system
def test_a_large_dead_letter_is_cut(spark):
    from millstream.app.inputs import Topic
    from millstream.event import Event
    from millstream.spark.outputs.dead_letters import MAX_VALUE_BYTES, letters

    class Small(Event):
        name: str

    row = (b"\xff", bytearray(b"x" * (MAX_VALUE_BYTES + 5)), "t", 0, 3, datetime(2026, 1, 1, tzinfo=UTC))
    types = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
    [letter] = letters(spark.createDataFrame([row], types), [Topic("t", Small)]).collect()
    body = json.loads(letter.value)
    assert letter.key == b"t-0-3"
    assert (len(body["value"]), body["size"]) == (MAX_VALUE_BYTES, MAX_VALUE_BYTES + 5)
    assert (body["key"], body["key_encoding"]) == ("/w==", "base64")
    assert "encoding" not in body
