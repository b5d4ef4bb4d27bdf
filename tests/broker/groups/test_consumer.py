"""The new group protocol as a state machine: joining, moving partitions, leaving, fencing; and random runs against a model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.broker.groups import consumer_records
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_members import Changes, Heartbeat, Outcome
from millstream.broker.groups.group import Committer
from millstream.broker.internal_topics import PREFIX, Replayed, pack
from millstream.protocol import errors

T, U = b"t" * 16, b"u" * 16


class Client:
    """A well-behaved consumer: owns what it was told to, gives up what it was told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned = {}
        self.told = {}


class Harness:
    def __init__(self) -> None:
        self.topics = {"t": (T, 4), "u": (U, 2)}
        self.now = 0.0
        self.stored = {}
        self.group = self.make("g")
        self.clients: dict[str, Client] = {}

    def make(self, group_id):
        return ConsumerGroup(
            group_id,
            lambda: self.topics,
            lambda regex: frozenset(name for name in self.topics if name.startswith(regex)),
            session_seconds=10.0,
        )

    def beat(self, name, topics=("t",), regex=None, instance=None, full=True, **changes) -> Outcome:
        client = self.clients.setdefault(name, Client(name))
        joining = client.epoch == 0
        values = {
            "epoch": client.epoch,
            "instance_id": instance,
            "rebalance_seconds": 20.0 if joining else None,
            "topics": frozenset(topics) if joining and regex is None else None,
            "regex": regex,
            "owned": {} if joining else (client.owned if full else None),
        }
        outcome = self.group.heartbeat(Heartbeat(name, **{**values, **changes}), self.now)
        self.store()
        if not outcome.error:
            client.epoch = outcome.epoch
            if outcome.assignment is not None:
                client.told = {t: set(i) for t, i in outcome.assignment.items()}
                client.owned = {t: set(i) for t, i in client.told.items()}
        elif outcome.error in (errors.FENCED_MEMBER_EPOCH, errors.UNKNOWN_MEMBER_ID):
            client.epoch, client.owned, client.told = 0, {}, {}
        return outcome

    def store(self) -> None:
        for key, value, version in consumer_records.writes(self.group):
            self.stored.pop(pack(key.API_KEY, key, 0), None)
            self.stored[pack(key.API_KEY, key, 0)] = None if value is None else pack(version, value, version)
        self.group.changes = Changes()

    def restart(self) -> None:
        """What was stored is all that is left (compaction keeps the last record of each key)."""
        self.group = self.make("g")
        for key, value in self.stored.items():
            data = memoryview(value)[2:] if value is not None else None
            version = PREFIX.unpack_from(value)[0] if value is not None else -1
            record = Replayed(PREFIX.unpack_from(key)[0], memoryview(key)[2:], version, data, -1)
            assert consumer_records.group_of(record) == "g"
            if not consumer_records.ends(record):
                consumer_records.read(record, self.group)
        self.group.restored(self.now)

    def check(self, name, epoch, places, version=9):
        return self.group.check_commit(Committer(name, None, epoch, places, version), self.now)

    def settle(self) -> None:
        for _ in range(6):
            for client in list(self.clients.values()):
                self.beat(client.name)

    def owned(self, name):
        return {(t, i) for t, indexes in self.clients[name].owned.items() for i in indexes}


def test_one_member_gets_everything_at_once():
    h = Harness()
    outcome = h.beat("a")
    assert (outcome.error, outcome.epoch, outcome.assignment) == (0, 2, {T: {0, 1, 2, 3}})
    assert h.group.state == "Stable"
    assert h.beat("a", full=False).assignment is None


def test_a_second_member_waits_until_the_first_has_let_go():
    h = Harness()
    h.beat("a")
    outcome = h.beat("b")
    assert (outcome.epoch, outcome.assignment) == (3, {})
    assert h.group.state == "Reconciling"
    assert h.beat("b").epoch == 3
    told = h.beat("a", full=False)
    assert told.epoch == 2 and len(told.assignment[T]) == 2  # it must give up two, and say so
    assert h.owned("b") == set()
    assert h.beat("a").epoch == 3
    assert len(h.beat("b").assignment[T]) == 2
    assert h.group.state == "Stable"
    assert not h.owned("a") & h.owned("b")


def test_leaving_hands_over():
    h = Harness()
    h.beat("a")
    h.beat("b")
    h.settle()
    assert h.beat("a", epoch=-1).epoch == -1
    del h.clients["a"]
    h.settle()
    assert len(h.owned("b")) == 4


def test_epochs_are_checked():
    h = Harness()
    h.beat("a")
    assert h.beat("a", epoch=7).error == errors.FENCED_MEMBER_EPOCH
    assert h.group.heartbeat(Heartbeat("x", 3), 0).error == errors.UNKNOWN_MEMBER_ID
    assert h.check("a", 2, [(T, 0)]) == 0
    assert h.check("a", 1, [(T, 0)]) == errors.STALE_MEMBER_EPOCH
    assert h.check("x", 1, [(T, 0)]) == errors.UNKNOWN_MEMBER_ID
    assert h.group.check_fetch(None, -1) == h.group.check_fetch("a", 2) == 0
    assert h.group.check_fetch("a", -1) == h.group.check_fetch("a", 1) == errors.STALE_MEMBER_EPOCH
    assert h.group.check_fetch("x", 1) == h.group.check_fetch(None, 1) == errors.UNKNOWN_MEMBER_ID


def test_an_earlier_epoch_commits_what_the_member_has_had_since_then():
    h = Harness()
    h.beat("a")
    h.settle()
    before = set(h.owned("a"))
    first = h.group.members["a"].epoch
    h.beat("b")
    h.settle()
    kept = set(h.owned("a"))
    assert h.group.members["a"].epoch > first
    assert kept < before
    for place in before:
        code = 0 if place in kept else errors.STALE_MEMBER_EPOCH
        assert h.check("a", first, [place]) == code
        assert h.check("a", first - 1, [place]) == errors.STALE_MEMBER_EPOCH
    assert h.check("a", first, sorted(kept)) == 0
    assert h.check("a", first, sorted(before)) == errors.STALE_MEMBER_EPOCH  # one is enough
    assert h.check("a", 99, sorted(kept)) == errors.STALE_MEMBER_EPOCH


def test_a_lost_answer_is_given_again():
    h = Harness()
    h.beat("a")
    h.beat("b")
    h.beat("a")
    client = h.clients["a"]
    owned = {t: set(i) for t, i in client.owned.items()}
    h.beat("a")
    assert client.epoch == 3
    assert h.beat("a", epoch=2, owned=owned).epoch == 3


def test_everything_is_told_to_who_tells_everything():
    """Others are only told of changes (GroupMetadataManager.consumerGroupHeartbeat)."""
    h = Harness()
    h.beat("a")
    assert h.beat("a", owned={}).assignment is None
    whole = Heartbeat("a", 2, rebalance_seconds=20.0, topics=frozenset(["t"]), owned={})
    assert h.group.heartbeat(whole, h.now).assignment == {T: {0, 1, 2, 3}}


def test_the_epoch_rises_once_for_each_change():
    h = Harness()
    assert h.beat("idle", topics=()).epoch == 1  # nobody follows anything
    assert h.beat("a").epoch == 2
    assert h.beat("more idle", topics=()).epoch == 2
    h.beat("b")
    assert h.group.epoch == 3
    h.beat("a", epoch=-1)
    h.beat("b", epoch=-1)
    assert (h.group.epoch, h.group.target_epoch) == (5, 3)
    h.beat("idle", assignor="range")
    h.beat("more idle", assignor="range")
    assert h.group.epoch == 6  # the one that most ask for has changed
    h.beat("idle", epoch=-1)
    h.beat("more idle", epoch=-1)
    assert (h.group.state, h.group.epoch, h.group.target_epoch) == ("Empty", 8, 8)


def test_silence_and_slow_revocation_are_fenced():
    h = Harness()
    h.beat("a")
    h.beat("b")
    h.beat("a", full=False)
    assert h.group.next_deadline() == 10.0
    for _ in range(5):
        h.now += 5
        h.beat("b")
        h.beat("a", full=False)  # lives, but does not let go
    assert h.group.tick(h.now) == ["a"]
    h.store()
    h.beat("b")
    assert len(h.owned("b")) == 4
    h.now += 10
    assert h.group.tick(h.now) == ["b"]
    assert h.group.state == "Empty"


def test_topics_come_grow_and_go():
    h = Harness()
    h.beat("a", topics=("t", "new"))
    h.topics["new"] = (b"n" * 16, 1)
    assert h.beat("a").assignment == {T: {0, 1, 2, 3}, b"n" * 16: {0}}
    h.topics["t"] = (T, 6)
    assert h.beat("a").assignment[T] == set(range(6))
    del h.topics["t"]
    h.settle()
    assert h.owned("a") == {(b"n" * 16, 0)}


def test_a_regular_expression():
    h = Harness()
    assert set(h.beat("a", regex="t").assignment) == {T}
    h.topics["two"] = (b"w" * 16, 1)
    assert set(h.beat("a").assignment) == {T, b"w" * 16}


def test_static_members():
    h = Harness()
    h.beat("a", instance="i")
    assert h.beat("b", instance="i").error == errors.UNRELEASED_INSTANCE_ID
    assert h.beat("a", epoch=-2, instance="i").epoch == -2
    epoch = h.group.epoch
    h.clients["b"].epoch = 0
    outcome = h.beat("b", instance="i")
    assert (outcome.error, outcome.epoch) == (0, epoch)
    assert len(outcome.assignment[T]) == 4
    assert h.beat("a", epoch=1, instance="i").error in (errors.FENCED_INSTANCE_ID, errors.UNKNOWN_MEMBER_ID)


def test_a_restart_keeps_epochs_and_assignments():
    h = Harness()
    h.beat("a")
    h.beat("b")
    h.beat("a", full=False)
    before = {m.id: (m.epoch, m.state, m.assigned, m.revoking) for m in h.group.members.values()}
    h.restart()
    assert {m.id: (m.epoch, m.state, m.assigned, m.revoking) for m in h.group.members.values()} == before
    h.settle()
    assert len(h.owned("a")) == len(h.owned("b")) == 2


class Machine(RuleBasedStateMachine):
    """Members that come, go, crash, lag; topics that change; restarts. No partition ever has two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness()

    @rule(name=st.sampled_from("abcd"), topics=st.sampled_from([("t",), ("t", "u"), ("u", "later")]))
    def come(self, name, topics) -> None:
        if name not in self.h.clients:
            self.h.beat(name, topics=topics)

    @precondition(lambda self: self.h.clients)
    @rule(data=st.data(), full=st.booleans())
    def live(self, data, full) -> None:
        self.h.beat(data.draw(st.sampled_from(sorted(self.h.clients))), full=full)

    @precondition(lambda self: self.h.clients)
    @rule(data=st.data(), crash=st.booleans())
    def go(self, data, crash) -> None:
        name = data.draw(st.sampled_from(sorted(self.h.clients)))
        if not crash and self.h.clients[name].epoch > 0:
            self.h.beat(name, epoch=-1)
        del self.h.clients[name]

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds) -> None:
        self.h.now += seconds
        for name in self.h.group.tick(self.h.now):
            if name in self.h.clients:  # the client finds out at its next heartbeat; until then it must stop by itself
                client = self.h.clients[name]
                client.owned, client.told = {}, {}
        self.h.store()

    @rule(partitions=st.integers(1, 6))
    def change_topic(self, partitions) -> None:
        self.h.topics["later"] = (b"l" * 16, max(partitions, self.h.topics.get("later", (b"", 0))[1]))

    @rule()
    def restart(self) -> None:
        self.h.restart()

    @rule()
    def settle(self) -> None:
        gone = set(self.h.group.members) - set(self.h.clients)
        for _ in range(3):  # those who crashed time out, the others live on
            self.h.now += 5
            self.h.settle()
            self.h.group.tick(self.h.now)
            self.h.store()
        self.h.settle()
        assert not gone & set(self.h.group.members)
        if self.h.clients:
            assert self.h.group.state == "Stable"
            wanted = {name for m in self.h.group.members.values() for name in m.topics} & set(self.h.topics)
            places = {(self.h.topics[n][0], i) for n in wanted for i in range(self.h.topics[n][1])}
            owned = [place for name in self.h.clients for place in self.h.owned(name)]
            assert sorted(owned) == sorted(places)

    @invariant()
    def one_owner(self) -> None:
        seen = {}
        for name in self.h.clients:
            for place in self.h.owned(name):
                assert place not in seen, f"{place} has two owners: {name} and {seen[place]}"
                seen[place] = name


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
