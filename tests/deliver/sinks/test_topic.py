"""The sink of topics on a real log: what it writes, what it reads back, and what it says is lacking."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.app.outputs import TopicSink
from millstream.app.query import Delivery
from millstream.client.admin import ensure_topic
from millstream.client.tail import tail
from millstream.deliver.seen import Origin
from millstream.deliver.sink import Place, Row, Written
from millstream.deliver.sinks.topic import connect
from tests.brokers import fresh, running_broker, wait_until

pytestmark = pytest.mark.system


def row(offset: int, text: str) -> Row:
    origin = Origin.parse(text)
    assert origin is not None
    return Row(0, offset, b"k", b"v", (("trace", None),), origin, text.encode(), 0.0)


def test_a_topic_tells_what_each_query_wrote(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as kafka:
        name = fresh("late")
        sink, other = (connect(Delivery("q", c, "g", TopicSink(name)), kafka) for c in ("_app.one", "_app.two"))
        assert sink.lacking() == name
        ensure_topic(kafka, name, 1, {})
        wait_until(lambda: sink.lacking() == "", "the topic is there")
        sink.open()
        other.open()
        done: list[Place] = []
        sink.send(row(1, "departures-0-1#a"), lambda place, took: done.append(place))
        sink.flush(10)
        other.send(row(1, "departures-0-1#b"), lambda place, took: None)
        other.flush(10)
        sink.send(row(2, "departures-0-2,planes-1-0"), lambda place, took: done.append(place))
        wait_until(lambda: sink.poll(0.1) or len(done) == 2, "acknowledged")
        found = [
            Written(Origin("departures", 0, 1, "#a"), done[0]),
            Written(Origin("departures", 0, 2, ",planes-1-0"), done[1]),
        ]
        assert list(sink.written_before({})) == found
        assert list(sink.written_before({0: done[1].offset})) == found[1:]
        [first, _, last] = tail(kafka, name, "earliest", follow=False)
        assert first.headers == (("trace", None), ("origin", b"departures-0-1#a"), ("query", b"_app.one"))
        assert dict(last.headers)["origin"] == b"departures-0-2,planes-1-0"
        sink.close()
        other.close()
