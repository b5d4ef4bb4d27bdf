"""Windows against what Kafka Streams and Flink answer: published cases, read from where MILLSTREAM_SEMANTICS says.

Cases of Kafka Streams with late rows are not run here: it judges each record by those before it, and a stream that takes one
record per batch takes too long for all of them; test_windows_model.py has late rows. Sliding windows are no operator of ours.
"""

import json
import os
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import millstream as ms
from tests.spark.streams import Memory

SEMANTICS = Path(os.environ.get("MILLSTREAM_SEMANTICS") or Path(__file__).parents[4] / "shared" / "semantics")

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not SEMANTICS.is_dir(), reason=f"there are no cases at {SEMANTICS}: set MILLSTREAM_SEMANTICS"),
]


def milliseconds(count):
    return timedelta(milliseconds=count)


def window(of):
    """The window of a case; times in milliseconds."""
    if of["type"] == "session":
        return ms.session("t", milliseconds(of["gap_ms"]))
    if of["type"] == "hopping":
        return ms.hopping("t", milliseconds(of["size_ms"]), milliseconds(of["advance_ms"]))
    return ms.tumbling("t", milliseconds(of["size_ms"]))


def final(case):
    """The last value of each key and window that a case expects, but those of its last record, which only moves the time."""
    found = {}
    for rows in case["expected_by_input"]:
        for row in rows:
            place = (row["key"], row["start"], row["end"])
            if row["value"] is None:
                found.pop(place, None)
            else:
                found[place] = int(row["value"])
    return found


def in_time(case):
    """Whether no record is behind the newest before it by more than the window waits."""
    newest = 0
    for _, _, at in case["input"]:
        if at < newest - case["window"]["grace_ms"]:
            return False
        newest = max(newest, at)
    return True


def cases():
    """Cases without late rows, by their window."""
    found = defaultdict(list)
    for name in ("kstreams_windows.json", "kstreams_random_windows.json"):
        for case in json.loads((SEMANTICS / name).read_text())["cases"]:
            of = {k: v for k, v in case["window"].items() if k != "grace_ms"}
            if of["type"] != "sliding" and in_time(case):
                found[json.dumps(of, sort_keys=True)].append(case)
    return found


def test_kafka_streams(spark):
    """All records of all cases of a window at once, counted by case and key."""
    run = 0
    for of, group in cases().items():
        of = json.loads(of)
        rows = [
            (c["id"], key, at) for c in group for key, value, at in c["input"] if value is not None and key is not None
        ]
        frame = spark.createDataFrame(rows, "case string, key string, at bigint").withColumn(
            "t", F.timestamp_millis("at")
        )
        counted = frame.groupBy("case", "key", window(of).alias("w")).count()
        flat = counted.select(
            "case", "key", F.unix_millis("w.start").alias("s"), F.unix_millis("w.end").alias("e"), "count"
        )
        found = defaultdict(dict)
        for row in flat.collect():
            end = row.e - of["gap_ms"] if of["type"] == "session" else row.e  # a session's end is its last record there
            if row.s >= 0:  # Kafka Streams has no windows that begin before 1970
                found[row["case"]][row.key, row.s, end] = row["count"]
        for case in group:
            expected = final(case)
            got = {k: n for k, n in found[case["id"]].items() if case["emit"] == "update" or k in expected}
            assert got == expected, case["id"]
            run += 1
    assert run > 30


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_flink(spark, tmp_path):
    """Row by row, with one that is late for some of its windows."""
    content = json.loads((SEMANTICS / "flink_windows.json").read_text())
    for number, case in enumerate(content["cases"]):
        of = case["window"]
        memory, name = Memory(spark), f"flink_{number}"
        schema = (
            "ts string, `int` int, `double` double, `float` float, bigdec decimal(10,2), string string, name string"
        )
        parsed = memory.frame.select(F.from_json("value", schema).alias("v")).select("v.*")
        timed = parsed.withColumn("t", F.to_timestamp("ts")).withWatermark(
            "t", f"{content['watermark_delay_ms']} milliseconds"
        )
        if of["type"] == "cumulate":
            size, step = f"{of['max_s']} seconds", f"{of['step_s']} seconds"
            grouped = timed.transform(ms.cumulating, "t", size, step, name="w").groupBy("name", "w")
        elif of["type"] == "hopping":
            grouped = timed.groupBy(
                "name", ms.hopping("t", f"{of['size_s']} seconds", f"{of['slide_s']} seconds").alias("w")
            )
        else:
            grouped = timed.groupBy("name", ms.tumbling("t", f"{of['size_s']} seconds").alias("w"))
        answers = grouped.agg(
            F.count("*"), F.sum("bigdec"), F.max("double"), F.min("float"), F.size(F.collect_set("string"))
        )
        writer = answers.writeStream.format("memory").queryName(name).outputMode("append")
        query = writer.option("checkpointLocation", (tmp_path / name).as_uri()).start()
        columns = ["ts", "int", "double", "float", "bigdec", "string", "name"]
        assert content["input_columns"] == columns
        try:
            for row in content["input"]:
                memory.add(json.dumps(dict(zip(columns, row, strict=True))))
                query.processAllAvailable()
            memory.add(json.dumps({"ts": "2020-10-11 00:00:00", "name": "end"}))
            query.processAllAvailable()
            rows = spark.table(name).where("name IS DISTINCT FROM 'end'").collect()
        finally:
            query.stop()
        found = [(r[0], r.w.start.astimezone(UTC), r.w.end.astimezone(UTC), *[text(v) for v in r[2:]]) for r in rows]
        expected = [(r[0], moment(r[1]), moment(r[2]), *[text(v) for v in r[3:]]) for r in case["expected"]]
        assert sorted(found, key=str) == sorted(expected, key=str), case["id"]


def text(value):
    return None if value is None else float(value)
