"""Turns: what one client sends at once does not keep the others waiting, and is answered whole and in its order."""

import socket
import threading
from random import Random

import pytest

from millstream.broker import limits
from millstream.broker.apis import APIS
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.records import build, headers
from tests.broker.inside import Inside
from tests.broker.wire import Wire

pytestmark = pytest.mark.system


class Captured(Wire):
    """Notes what would be sent."""

    def __init__(self) -> None:
        self.client_id, self._correlation, self.data = "flood", 0, bytearray()
        self.socket = self

    def sendall(self, data: bytes) -> None:
        self.data += data


def test_a_flood_of_requests_lets_others_have_their_turn(tmp_path, monkeypatch):
    flood = Captured()
    for _ in range(200):
        flood.send(MetadataRequest([]), 12)
    with Inside(tmp_path / "data") as broker, broker.wire() as first, Wire(broker.address, "single") as second:
        assert second.ask(MetadataRequest([]), 12).brokers
        handled, begun, go_on = [], threading.Event(), threading.Event()
        real = APIS[3].handler

        def handle(broker, connection, request, version):
            handled.append(connection.client_id)
            begun.set()
            assert go_on.wait(10)
            until = broker.loop.time() + limits.TURN_SECONDS / 10
            while broker.loop.time() < until:
                pass
            return real(broker, connection, request, version)

        monkeypatch.setattr(APIS[3], "handler", handle)
        first.socket.sendall(flood.data)
        assert begun.wait(10)
        second.send(MetadataRequest([]), 12)
        go_on.set()
        assert second.receive(MetadataRequest([]), 12).brokers
        assert handled.index("single") < 50, "it waited until the other client's requests were done"
        for _ in range(200):
            assert first.receive(MetadataRequest([]), 12).brokers
        assert sorted(handled) == ["flood"] * 200 + ["single"]


def produce(*values: bytes) -> ProduceRequest:
    batch = build([(None, value) for value in values], 1_760_000_000_000)
    return ProduceRequest(None, 1, 30000, [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])])


@pytest.mark.parametrize("durability", ["os", "commit"])
@pytest.mark.parametrize("turn", [0.0, 0.0002, 1000.0])
def test_everything_is_answered_in_its_order_however_it_is_cut(turn, durability, tmp_path, monkeypatch):
    """Small and large frames, in pieces of any size, with turns that are over at once, soon or never."""
    monkeypatch.setattr(limits, "TURN_SECONDS", turn)
    monkeypatch.setattr(limits, "MAX_IN_FLIGHT", 20)
    chance = Random(7)
    flood, sent = Captured(), []
    for i in range(1500):
        size = chance.choice([10, 10, 10, 100, 2000]) if chance.random() < 0.99 else 40_000
        sent.append(b"%06d" % i + chance.randbytes(size))
        flood.send(produce(sent[-1]), 9)
    with Inside(tmp_path / "data", **{"millstream.durability": durability}) as broker, broker.wire() as wire:
        wire.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5000), 5)
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send():
            position = 0
            while position < len(flood.data):
                size = chance.choice([1, 3, 50, 5000, 300_000])
                wire.socket.sendall(flood.data[position : position + size])
                position += size

        sender = threading.Thread(target=send)
        sender.start()
        for i in range(1500):
            answer = wire.receive(produce(b""), 9).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, i)
        sender.join()
        log = next((tmp_path / "data" / "topics" / "t" / "0").glob("*.log")).read_bytes()
        offsets = [header.base_offset for _, header in headers(log)]
        assert offsets == list(range(1500))
        places = [log.index(value) for value in sent]
        assert places == sorted(places)
