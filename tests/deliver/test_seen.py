"""The memory of written origins: bounded, exact where it says so, and enough for delivering once through any crashes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.deliver.progress import Progress, Saved
from millstream.deliver.seen import Bounds, Origin, Seen, Verdict


def origin(offset: int, partition: int = 0) -> Origin:
    return Origin("departures", partition, offset)


def test_an_origin_is_new_until_it_is_sent():
    seen = Seen()
    assert seen.verdict(origin(5)) is Verdict.NEW
    seen.sending(origin(5))
    assert seen.verdict(origin(5)) is Verdict.WRITTEN
    assert seen.verdict(origin(5, partition=1)) is Verdict.NEW


def test_the_oldest_are_let_go_and_are_unknown_from_then_on():
    seen = Seen(capacity=2)
    for n in range(4):
        seen.sending(origin(n))
        seen.written(origin(n), 0, 10 + n)
    assert [seen.verdict(origin(n)) for n in range(5)] == [Verdict.UNKNOWN] * 2 + [Verdict.WRITTEN] * 2 + [Verdict.NEW]
    assert seen.bounds == Bounds(tail={0: 12}, floor={"departures-0": 2})


def test_the_history_decides_what_is_unknown():
    seen = Seen(Bounds(tail={0: 12}, floor={"departures-0": 100}))
    seen.learn({origin(7)})
    assert seen.verdict(origin(7)) is Verdict.WRITTEN
    assert seen.verdict(origin(8)) is Verdict.NEW


def test_what_is_on_its_way_is_never_let_go():
    seen = Seen(capacity=1)
    seen.sending(origin(1))
    for n in (2, 3, 4):
        seen.sending(origin(n))
        seen.written(origin(n), 0, n)
    assert seen.verdict(origin(1)) is Verdict.WRITTEN
    seen.written(origin(1), 1, 0)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("departures-0-17", Origin("departures", 0, 17)),
        ("late-departures-11-0", Origin("late-departures", 11, 0)),
        ("departures", None),
        ("-0-1", None),
        ("departures-x-1", None),
        ("departures-1-²", None),
        ("", None),
        ("#departures-0-1", None),
        (",departures-0-1", None),
        ("departures-0-17#9f86d081", Origin("departures", 0, 17, "#9f86d081")),
        ("a-0-17,b-c-3-4#9f86d081", Origin("a", 0, 17, ",b-c-3-4#9f86d081")),
        ("a-0-17,nonsense", Origin("a", 0, 17, ",nonsense")),
        ("", None),
    ],
)
def test_origins_are_read_from_their_text(text, expected):
    assert Origin.parse(text) == expected
    assert expected is None or str(expected) == text


def test_what_is_saved_comes_back():
    saved = Saved(True, Bounds({0: 5, 3: 9}, {"departures-0": 44}))
    assert Saved.parse(saved.text()) == saved


def test_too_many_partitions_are_left_out_and_everything_is_read_back():
    saved = Saved(True, Bounds({}, {f"a-rather-long-name-of-a-topic-{n}": n for n in range(500)}))
    assert len(saved.text()) < 100
    assert Saved.parse(saved.text()) == Saved(True, Bounds())


@pytest.mark.parametrize(
    "text", [None, "", "x", "[]", '{"v":2,"open":false}', '{"v":1}', '{"v":1,"open":false,"tail":3}']
)
def test_foreign_metadata_means_an_open_delivery_of_which_nothing_is_known(text):
    assert Saved.parse(text) == Saved(open=True)


def test_progress_stops_at_the_oldest_open_candidate():
    progress = Progress({0: 10, 1: 0})
    progress.begin(0, 10)
    progress.skip(0, 11)
    progress.begin(0, 13)
    assert progress.done() == {0: 10, 1: 0}
    progress.end(0, 10)
    assert progress.done() == {0: 13, 1: 0}
    progress.end(0, 13)
    assert progress.done() == {0: 14, 1: 0}
    assert progress.open == 0


@dataclass
class World:
    """Candidates, the alert's topic and the group's commit, with one delivery at a time that may be killed anywhere."""

    candidates: list[list[Origin]]
    capacity: int
    output: list[list[Origin]] = field(default_factory=lambda: [[], []])
    committed: tuple[dict[int, int], str] | None = None
    deep_reads: int = 0

    def start(self) -> None:
        position, text = self.committed or (dict.fromkeys(range(len(self.candidates)), 0), Saved().text())
        bounds = Saved.parse(text).bounds
        self.position, self.progress, self.seen = dict(position), Progress(position), Seen(bounds, self.capacity)
        for partition, written in enumerate(self.output):
            for offset in range(bounds.tail.get(partition, 0), len(written)):
                self.seen.written(written[offset], partition, offset)
        self.flying: list[list[tuple[Origin, int, int]]] = [[], []]

    def read(self, partition: int) -> None:
        offset = self.position[partition]
        if offset == len(self.candidates[partition]):
            return
        self.position[partition] += 1
        cause = self.candidates[partition][offset]
        verdict = self.seen.verdict(cause)
        if verdict is Verdict.UNKNOWN:
            self.deep_reads += 1
            tail = self.seen.bounds.tail
            self.seen.learn({o for p, w in enumerate(self.output) for o in w[: tail.get(p, 0)]})
            verdict = self.seen.verdict(cause)
        if verdict is Verdict.WRITTEN:
            self.progress.skip(partition, offset)
            return
        assert verdict is Verdict.NEW
        self.seen.sending(cause)
        self.progress.begin(partition, offset)
        self.flying[hash(cause) % 2].append((cause, partition, offset))

    def acknowledge(self, to: int) -> None:
        if self.flying[to]:
            cause, partition, offset = self.flying[to].pop(0)
            self.output[to].append(cause)
            self.seen.written(cause, to, len(self.output[to]) - 1)
            self.progress.end(partition, offset)

    def commit(self) -> None:
        self.committed = (self.progress.done(), Saved(True, self.seen.bounds).text())

    def crash(self, landed: int) -> None:
        """Of what was on its way, some arrives (in its order) and the rest does not."""
        for to, flying in enumerate(self.flying):
            self.output[to] += [cause for cause, _, _ in flying[: landed >> (4 * to) & 3]]
        self.start()

    def finish(self) -> None:
        for p, messages in enumerate(self.candidates):
            for _ in messages:
                self.read(p)
        for to in (0, 1):
            while self.flying[to]:
                self.acknowledge(to)


# Rows of one event, told apart by a hash, and rows of several events.
rests = st.sampled_from(["", "", "#a", "#b", ",other-0-3"])
origins = st.builds(Origin, st.just("t"), st.integers(0, 1), st.integers(0, 30), rests)
actions = st.one_of(
    st.tuples(st.just("read"), st.integers(0, 1)),
    st.tuples(st.just("read"), st.integers(0, 1)),
    st.tuples(st.just("acknowledge"), st.integers(0, 1)),
    st.tuples(st.just("acknowledge"), st.integers(0, 1)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("crash"), st.integers(0, 255)),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.lists(origins, max_size=40), min_size=2, max_size=2), st.integers(1, 6), st.lists(actions, max_size=120)
)
def test_each_origin_is_written_once_whatever_is_replayed_and_whenever_it_crashes(candidates, capacity, script):
    """Any order of candidates with any repeats: more than Spark may ever do."""
    world = World(candidates, capacity)
    world.start()
    for name, *arguments in script:
        getattr(world, name)(*arguments)
    world.finish()
    written = [o for partition in world.output for o in partition]
    assert len(written) == len(set(written)), "an alert was written twice"
    assert set(written) == {o for partition in candidates for o in partition}, "an alert was lost"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=20), st.integers(5, 40))
def test_replays_within_the_memory_need_no_look_into_the_history(crashes, batch):
    """What Spark really does: offsets ascend, and a crash repeats less than the memory holds."""
    world = World([[], []], capacity=4 * batch)
    world.start()
    for n, landed in enumerate([*crashes, 0]):
        fresh = [origin(offset) for offset in range(n * batch, (n + 1) * batch)]
        world.candidates[n % 2] += fresh
        world.finish()
        world.commit()
        world.candidates[1 - n % 2] += fresh
        for _ in fresh[: landed % batch]:
            world.read(1 - n % 2)
        world.crash(landed)
    world.finish()
    written = [o for partition in world.output for o in partition]
    assert len(written) == len(set(written)) == (len(crashes) + 1) * batch
    assert world.deep_reads == 0
