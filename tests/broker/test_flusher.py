"""Group commit: many acknowledgements share one fsync, and none is given for a failed one."""

import asyncio
import threading

from millstream.broker.flusher import Flusher


class Topic:
    name = "t"


class Partition:
    def __init__(self) -> None:
        self.topic, self.index = Topic, 0
        self.flushes = 0
        self.go_on = threading.Event()
        self.error: Exception | None = None
        self.listeners: set = set()
        self.announced = 0

    def announce(self) -> None:
        self.announced += 1

    def flush(self) -> None:
        self.go_on.wait(10)
        self.flushes += 1
        if self.error is not None:
            raise self.error


def failed(response, errors):
    return f"{response} failed"


def test_many_share_a_flush_and_late_ones_wait_for_the_next():
    async def run():
        partition = Partition()
        flusher = Flusher(asyncio.get_running_loop())
        first = [flusher.after([partition], n, failed) for n in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = [flusher.after([partition], n, failed) for n in range(10, 20)]
        assert not any(f.done() for f in first + late)
        partition.go_on.set()
        assert await asyncio.gather(*first, *late) == list(range(20))
        assert partition.flushes == 2
        flusher.close()

    asyncio.run(run())


def test_a_failed_flush_is_no_acknowledgement():
    async def run():
        good, bad = Partition(), Partition()
        good.go_on.set()
        bad.go_on.set()
        bad.error = OSError("no")
        flusher = Flusher(asyncio.get_running_loop())
        answers = await asyncio.gather(
            flusher.after([good], "good", failed),
            flusher.after([bad], "bad", failed),
            flusher.after([good, bad], "both", failed),
        )
        assert answers == ["good", "bad failed", "both failed"]
        flusher.close()

    asyncio.run(run())


def test_readers_are_woken_after_the_sync_and_not_before():
    async def run():
        partition = Partition()
        partition.listeners.add(print)
        flusher = Flusher(asyncio.get_running_loop())
        flusher.soon(partition)
        await asyncio.sleep(0)
        assert partition.announced == 0
        partition.go_on.set()
        await flusher.after([partition], "", failed)
        assert partition.announced >= 1
        flusher.close()

    asyncio.run(run())
