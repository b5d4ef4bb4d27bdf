"""What every part of the broker builds on: answers that wait for an outcome, and `commit` topics that are synced unasked."""

import asyncio
from contextlib import contextmanager

from millstream.broker.core import Core
from millstream.broker.dynamic import Dynamic
from millstream.broker.settings import Settings
from millstream.log import Log
from millstream.protocol.records import build


@contextmanager
def opened(folder):
    """To be used on a running loop."""
    with Log(folder / "log") as log:
        core = Core(log, Dynamic(folder, Settings()), asyncio.get_running_loop())
        yield core
        core.flusher.close()


def test_an_answer_comes_when_its_outcome_is_known(tmp_path):
    async def run():
        with opened(tmp_path) as core:
            known, later = core.loop.create_future(), core.loop.create_future()
            known.set_result(1)
            assert core.answer(known, str) == "1"
            answer = core.answer(later, str)
            await asyncio.sleep(0)
            assert not answer.done()
            later.set_result(2)
            assert await answer == "2"

    asyncio.run(run())


def test_an_answer_is_given_up_with_its_outcome_or_its_client(tmp_path):
    async def run():
        with opened(tmp_path) as core:
            outcome, other = core.loop.create_future(), core.loop.create_future()
            answer, unwanted = core.answer(outcome, str), core.answer(other, str)
            outcome.cancel()
            unwanted.cancel()  # its connection is closed
            other.set_result(1)
            await asyncio.sleep(0)
            assert answer.cancelled() and unwanted.cancelled()

    asyncio.run(run())


def test_what_only_a_sync_makes_readable_is_synced_unasked(tmp_path):
    async def run():
        with opened(tmp_path) as core:
            partition = core.log.create("t", 1, {"millstream.durability": "commit"}).partitions[0]
            woken = asyncio.Event()
            partition.listeners.add(lambda _: woken.set())
            partition.append(build([(None, b"v")], core.now_ms()), core.now_ms())
            assert partition.high_watermark == 0
            await asyncio.wait_for(woken.wait(), 10)
            assert partition.high_watermark == partition.flushed_offset == 1

    asyncio.run(run())
