"""Server-sent events: the wire format, the newest state for slow clients, resuming, heartbeats, the bounds."""

import asyncio

import pytest

from millstream.web import events
from millstream.web.events import EventStream, Hub, frame, last_event_id


def parse(chunk):
    """Return (id, data) of every message in a chunk, as the standard says."""
    found = []
    for block in chunk.decode().split("\n\n"):
        lines = [line.partition(":") for line in block.split("\n") if line and not line.startswith(":")]
        data = [value.removeprefix(" ") for name, _, value in lines if name == "data"]
        ids = [value.strip() for name, _, value in lines if name == "id"]
        if data:
            found.append((ids[0] if ids else None, "\n".join(data)))
    return found


def test_frames_have_the_standards_form():
    assert frame("a") == b"data: a\n\n"
    assert frame("a\nb\r\nc\rd", event="e", id="7", retry_ms=5) == (
        b"retry: 5\nid: 7\nevent: e\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
    )
    assert frame("") == b"data: \n\n"


def test_a_line_end_in_a_name_cannot_make_another_field():
    assert frame("x", event="a\ndata: evil", id="1\r\n\r\ndata: evil") == (
        b"id: 1    data: evil\nevent: a data: evil\ndata: x\n\n"
    )


def test_a_slow_client_gets_the_newest_state_of_each_part_only():
    async def scenario():
        hub = Hub()
        client = hub.connect()
        for i in range(10_000):
            hub.publish("numbers", str(i))
            hub.publish("letters", "a" if i < 5_000 else "b")
        assert client.waiting == 2
        return [data for chunk in await client.take() for _, data in parse(chunk)]

    assert asyncio.run(scenario()) == ["b", "9999"]


def test_unchanged_state_is_not_sent_again():
    async def scenario():
        hub = Hub()
        client = hub.connect()
        assert hub.publish("a", "1")
        await client.take()
        assert not hub.publish("a", "1")
        return client.waiting

    assert asyncio.run(scenario()) == 0


def test_a_client_that_comes_back_gets_what_changed_since():
    async def scenario():
        hub = Hub()
        hub.publish("a", "1")
        hub.publish("b", "1")
        first = hub.connect()
        seen = parse((await first.take())[-1])[0][0]
        first.close()
        assert hub.connect(seen).waiting == 0
        hub.publish("a", "2")
        again = hub.connect(seen)
        back = [data for chunk in await again.take() for _, data in parse(chunk)]
        return back, hub.connect("0badf00d-2").waiting, hub.connect("nonsense").waiting, hub.connect(None).waiting

    assert asyncio.run(scenario()) == (["2"], 2, 2, 2)


def test_every_part_that_was_not_delivered_is_sent_after_a_resume():
    """Frames come in the order of their versions: what a client saw last says which parts it has."""

    async def scenario():
        hub = Hub()
        client = hub.connect()
        for part in "abc":
            hub.publish(part, "1")
        hub.publish("a", "2")
        frames = await client.take()
        seen = parse(frames[0])[0]
        assert seen[1] == "1"  # only the first frame arrived before the connection broke
        back = hub.connect(seen[0])
        return [data for chunk in await back.take() for _, data in parse(chunk)]

    assert asyncio.run(scenario()) == ["1", "2"]


def test_clients_and_parts_are_bounded(monkeypatch):
    async def scenario():
        hub = Hub(max_clients=2)
        first, second = hub.connect(), hub.connect()
        assert hub.connect().once and hub.clients == 2
        first.close()
        assert not hub.connect().once and not second.once
        monkeypatch.setattr(events, "MAX_PARTS", 1)
        hub.publish("a", "1")
        with pytest.raises(ValueError, match="at most 1 parts"):
            hub.publish("b", "1")

    asyncio.run(scenario())


class Browser:
    """An ASGI client that takes what is sent as fast as it is told to."""

    def __init__(self):
        self.chunks = []
        self.taking = asyncio.Event()
        self.taking.set()
        self.gone = asyncio.Event()
        self.ended = False
        self.news = asyncio.Condition()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.taking.wait()
        async with self.news:
            if message["type"] == "http.response.body":
                self.chunks.append(message["body"])
                self.ended = not message.get("more_body", False)
            self.news.notify_all()

    async def until(self, condition):
        async with asyncio.timeout(5), self.news:
            await self.news.wait_for(lambda: condition(self))


def test_a_stream_ends_when_the_client_leaves_and_says_so():
    async def scenario():
        hub, browser, left = Hub(), Browser(), []
        stream = EventStream(hub.connect(), on_leave=lambda: left.append(True))
        serving = asyncio.create_task(stream({}, browser.receive, browser.send))
        await browser.until(lambda b: b.chunks)
        hub.publish("a", "1")
        await browser.until(lambda b: len(b.chunks) == 2)
        browser.gone.set()
        await asyncio.wait_for(serving, 5)
        return hub.clients, left, parse(browser.chunks[1])[0][1], browser.chunks[0]

    assert asyncio.run(scenario()) == (0, [True], "1", b"retry: 1000\n\n")


def test_a_page_too_many_gets_what_there_is_and_comes_back():
    async def scenario():
        hub, browser = Hub(max_clients=0), Browser()
        hub.publish("a", "1")
        await asyncio.wait_for(EventStream(hub.connect())({}, browser.receive, browser.send), 5)
        return b"".join(browser.chunks)

    got = asyncio.run(scenario())
    assert got.startswith(b"retry: 5000\nid: ") and parse(got)[0][1] == "1"


def test_a_stream_ends_when_the_hub_closes():
    async def scenario():
        hub, browser = Hub(), Browser()
        serving = asyncio.create_task(EventStream(hub.connect())({}, browser.receive, browser.send))
        await browser.until(lambda b: b.chunks)
        hub.close()
        await asyncio.wait_for(serving, 5)
        return browser.ended, hub.connect()

    assert asyncio.run(scenario()) == (True, None)


def test_a_client_that_takes_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(events, "SEND_TIMEOUT_S", 0.05)

    async def scenario():
        hub, browser = Hub(), Browser()
        serving = asyncio.create_task(EventStream(hub.connect())({}, browser.receive, browser.send))
        await browser.until(lambda b: b.chunks)
        browser.taking.clear()
        for i in range(1000):
            hub.publish("a", str(i))
        await asyncio.wait_for(serving, 5)
        return hub.clients

    assert asyncio.run(scenario()) == 0


def test_heartbeats_keep_a_quiet_stream_open(monkeypatch):
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)

    async def scenario():
        hub, browser = Hub(), Browser()
        serving = asyncio.create_task(EventStream(hub.connect())({}, browser.receive, browser.send))
        await browser.until(lambda b: len(b.chunks) >= 4)
        browser.gone.set()
        await serving
        return set(browser.chunks[1:4])

    assert asyncio.run(scenario()) == {b":\n\n"}


def test_the_id_from_outside_is_bounded():
    assert last_event_id({}) is None
    assert len(last_event_id({"last-event-id": "9" * 10_000})) == 64
