"""Kafka as Spark's connector wants it: the client's properties in Java's names, sources, and messages to write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.settings import Kafka, MillstreamError
from millstream.spark import provenance

Ranges = Mapping[str, Mapping[int, tuple[int, int]]]  # topic -> partition -> (from, to), `to` excluded

# How many events a micro-batch takes in at most: a backlog is worked off in steps whose results are seen and committed.
MAX_EVENTS_PER_BATCH = 250_000
JSON_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
# Metadata of a column whose text is JSON: it is written as such, not as a quoted string.
JSON_COLUMN = "millstream.json"

_COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_SAME = ("security.protocol", "ssl.endpoint.identification.algorithm", "client.id")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def options(kafka: Kafka) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink for an address given in librdkafka's properties.

    Raises MillstreamError for a SASL mechanism that has no counterpart.
    """
    given = dict(kafka.options)
    java = {"bootstrap.servers": kafka.bootstrap} | {k: given[k] for k in _SAME if k in given}
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    if protocol := java.get("security.protocol"):
        java["security.protocol"] = protocol.upper()
    if "SASL" in java.get("security.protocol", ""):
        java |= _sasl(given)
    if authority := given.get("ssl.ca.location"):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if certificate := given.get("ssl.certificate.location"):
        java["ssl.keystore.type"] = "PEM"
        java["ssl.keystore.certificate.chain"] = Path(certificate).read_text()
        java["ssl.keystore.key"] = Path(given.get("ssl.key.location", certificate)).read_text()
        if password := given.get("ssl.key.password"):
            java["ssl.key.password"] = password
    return {f"kafka.{k}": v for k, v in java.items()}


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or ""
    if mechanism not in _LOGIN:
        raise MillstreamError(
            f"kafka: Spark's connector is set up for the SASL mechanisms {', '.join(_LOGIN)}, got {mechanism!r}."
        )
    user, password = (_quoted(given.get(f"sasl.{k}", "")) for k in ("username", "password"))
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_LOGIN[mechanism]} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read_stream(spark: SparkSession, kafka: Kafka, topics: Iterable[str], *, realtime: bool = False) -> DataFrame:
    """Return the messages of the topics from their beginning, as a stream with the connector's columns and no headers."""
    reader = (
        spark.readStream.format("kafka")
        .options(**options(kafka))
        .option("subscribe", ",".join(sorted(topics)))
        .option("startingOffsets", "earliest")
    )
    if not realtime:
        reader = reader.option("maxOffsetsPerTrigger", MAX_EVENTS_PER_BATCH)
    return reader.load()


def read_range(spark: SparkSession, kafka: Kafka, ranges: Ranges) -> DataFrame:
    """Return exactly the messages of the offset ranges, as a plain DataFrame."""
    ranges = {t: {p: r for p, r in parts.items() if r[0] < r[1]} for t, parts in ranges.items()}
    wanted = {t: sorted(parts) for t, parts in ranges.items() if parts}
    if not wanted:
        return spark.createDataFrame([], _COLUMNS)
    ends = [{t: {p: r[i] for p, r in parts.items()} for t, parts in ranges.items() if parts} for i in (0, 1)]
    return (
        spark.read.format("kafka")
        .options(**options(kafka))
        .option("assign", json.dumps(wanted))
        .option("startingOffsets", json.dumps(ends[0]))
        .option("endingOffsets", json.dumps(ends[1]))
        .load()
    )


def messages(frame: DataFrame, key: Sequence[str], *, distinct: bool = False) -> DataFrame:
    """Return the rows of a merged frame (`provenance`) as messages: the columns as a JSON object, null columns as null, the key
    column's text as the key, and, where the frame has them, the causes as the header `origin`.

    distinct: one event may make several rows, and the header must tell them apart.
    """
    fields = {f.name: f for f in frame.schema.fields if f.name != provenance.ORIGIN}
    body = F.struct(*[_json_value(f).alias(name) for name, f in fields.items()])
    value = F.to_json(body, {"ignoreNullFields": "false", "timestampFormat": JSON_TIME})
    columns = [
        text(F.col(f"`{key[0]}`"), fields[key[0]].dataType).cast("binary").alias("key") if key else _no_key(),
        value.cast("binary").alias("value"),
    ]
    if provenance.has(frame):
        columns.append(provenance.header(provenance.identity(frame, value if distinct else None)).alias("headers"))
    return frame.select(*columns)


def check_key(where: str, key: Sequence[str], frame: DataFrame) -> None:
    """Raise MillstreamError, beginning with `where`, when the result lacks the column that becomes the message's key."""
    for name in key:
        if name not in provenance.columns(frame):
            raise MillstreamError(
                f"{where}: the key names the column {name!r}, which the function's result lacks;"
                f" it has {', '.join(provenance.columns(frame))}."
            )


def text(column: Column, kind: T.DataType) -> Column:
    """Return a column as the text that a message's key has: times in ISO 8601, everything else as Spark writes it."""
    return F.date_format(column, JSON_TIME) if isinstance(kind, T.TimestampType) else column.cast("string")


def _no_key() -> Column:
    return F.lit(None).cast("binary").alias("key")


def _json_value(field: T.StructField) -> Column:
    column = F.col(f"`{field.name}`")
    return F.try_parse_json(column) if field.metadata.get(JSON_COLUMN) else column
