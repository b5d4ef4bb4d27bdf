"""What becomes of offsets and groups with time, over a real log and a clock of the test's own: expiry, deletion, restart."""

import asyncio
import itertools

import pytest

from millstream.broker.dynamic import Dynamic
from millstream.broker.groups.classic_events import Join, Sync
from millstream.broker.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH, Heartbeat
from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.groups.group import Committer
from millstream.broker.groups.offsets import Committed
from millstream.broker.settings import Settings
from millstream.log import Log, LogError
from millstream.protocol import errors
from millstream.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.protocol.records import build_marker

RETENTION = 60.0  # seconds
SETTINGS = {
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
    "group.consumer.session.timeout.ms": "2000000000",
}
EPOCH_MS = 1_700_000_000_000
FOREVER = 1e6  # a session that does not end in these tests


class Timer:
    def __init__(self, at, call):
        self.at, self.call = at, call

    def cancel(self):
        self.call = None


class World:
    """What a coordinator sees of its broker: a clock that the test moves, the log, the settings."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = Settings(SETTINGS)
        self.dynamic = Dynamic(folder, self.settings)
        self.loop = self
        self.now = 1000.0  # the loop's clock, of which nobody knows the beginning
        self.timers = []
        self.topics_version = 1
        self.futures = asyncio.new_event_loop()
        self.start()

    # ---- the loop

    def time(self):
        return self.now

    def now_ms(self):
        return EPOCH_MS + round(self.now * 1000)

    def call_at(self, at, call, *arguments):
        self.timers.append(Timer(at, lambda: call(*arguments)))
        return self.timers[-1]

    def create_future(self):
        return self.futures.create_future()

    def call_later(self, delay, call, *arguments):
        return self.call_at(self.now + delay, call, *arguments)

    def pass_seconds(self, seconds):
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.call is not None and timer.at <= until]:
            first = min(due, key=lambda timer: timer.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
        self.now = until

    # ---- the broker's life

    def start(self):
        self.log = Log(self.folder, self.settings.log_defaults)
        for name in ("followed", "other"):
            if name not in self.log.topics:
                self.log.create(name, 2)
        self.groups = GroupCoordinator(self)
        self.groups.load()

    def stop(self):
        self.groups.close()
        self.timers.clear()
        self.log.close()

    def restart(self, after=0.0):
        self.stop()
        self.now += after
        self.start()

    # ---- clients

    def commit(self, group, topic, index=0, expires=-1, pending=None):
        what = Committed(7, at=self.now_ms(), expires=expires)
        if pending is None:
            assert self.groups.commits.check(group, Committer("", None, -1, [], 8)) == 0 or group in self.members()
            assert self.groups.commits.commit(group, [((topic, index), what)]) == 0
        else:
            assert self.groups.commits.commit_pending(group, (pending, 0), [((topic, index), what)]) == 0

    def end(self, group, producer, commit):
        """The coordinator of transactions has written its marker."""
        partition = self.groups.directory.store.partition(group)
        marker = build_marker(producer, 0, commit=commit, coordinator_epoch=0, timestamp=self.now_ms())
        partition.append(marker, self.now_ms(), internal=True)
        self.groups.commits.transaction_ended(producer, commit, partition.index, durable=False)

    def members(self):
        return {g.id for g in self.groups.directory.groups.values() if g.members}

    def committed(self, group):
        offsets = self.groups.directory.offsets.get(group)
        return {topic for topic, _ in offsets.committed} if offsets else set()

    def join(self, name, topics=("followed",), kind="consumer", metadata=None, sync=True):
        """A classic group with one member, stable unless it is not to sync; the member's id."""
        group = self.groups.classic.found(name)
        if metadata is None:
            metadata = b"\0\0" + ConsumerProtocolSubscription(list(topics)).encode(0)
        joined = self.futures.create_future()
        join = Join("", None, "client", "/host", FOREVER, FOREVER, kind, [("range", metadata)], id_first=False)
        self.groups.classic.run(group, group.join(join, joined, self.now))
        member = joined.result().member_id
        if sync:
            synced = self.futures.create_future()
            effects = group.sync(Sync(member, None, group.generation), synced, self.now)
            self.groups.classic.run(group, effects)
            assert synced.result().error == 0
        return member

    def leave(self, name, member):
        group = self.groups.directory.groups[name]
        codes, effects = group.leave([(member, None)], self.now)
        assert codes == [0]
        self.groups.classic.run(group, effects)

    def beat(self, name, epoch=JOIN_EPOCH, topics=("followed",), regex=None, member="m"):
        joining = epoch == JOIN_EPOCH
        beat = Heartbeat(
            member,
            epoch,
            rebalance_seconds=60.0 if joining else None,
            topics=frozenset(topics) if joining else None,
            regex=regex,
            owned={} if joining else None,
        )
        outcome = self.groups.consumer.heartbeat(name, beat)
        assert outcome.error == 0
        return outcome.epoch


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "log")
    yield made
    made.stop()
    made.futures.close()


def test_offsets_from_outside_expire_by_their_commits_and_then_the_group_is_gone(world):
    """No protocol type: a group only by its offsets (ClassicGroup.offsetExpirationCondition, the last branch)."""
    world.commit("g", "followed")
    world.pass_seconds(30)
    world.commit("g", "other")
    world.pass_seconds(RETENTION - 30 - 2)
    assert world.committed("g") == {"followed", "other"}
    world.pass_seconds(3)
    assert world.committed("g") == {"other"}
    world.commit("g", "other")  # in use again
    world.pass_seconds(RETENTION - 2)
    assert world.committed("g") == {"other"}
    world.pass_seconds(3)
    assert not world.groups.directory.exists("g")
    world.restart()
    assert not world.groups.directory.exists("g")
    assert world.groups.listing() == []


def test_a_group_known_by_its_offsets_only_is_gone_with_them(world):
    world.commit("g", "followed")
    world.restart()
    assert world.groups.directory.offsets_only("g")
    world.pass_seconds(RETENTION + 1)
    assert world.groups.listing() == []
    assert world.groups.delete("g") == errors.GROUP_ID_NOT_FOUND


def test_in_a_live_group_topics_that_nobody_follows_expire_and_others_never(world):
    world.join("g")
    world.commit("g", "followed")
    world.commit("g", "other")
    world.pass_seconds(RETENTION - 2)
    assert world.committed("g") == {"followed", "other"}
    world.pass_seconds(3)
    assert world.committed("g") == {"followed"}
    world.pass_seconds(10 * RETENTION)
    assert world.committed("g") == {"followed"}
    world.restart()  # the members' subscriptions are read back
    world.pass_seconds(10 * RETENTION)
    assert world.committed("g") == {"followed"}


@pytest.mark.parametrize("kind", ["connect", "consumer"])
def test_when_it_is_not_known_what_the_members_follow_nothing_expires(world, kind):
    """Kafka Connect's groups, and consumers whose subscription cannot be read (ClassicGroup.subscribedTopics is empty)."""
    member = world.join("g", kind=kind, metadata=b"\xff\xfe?")
    world.commit("g", "followed")
    world.commit("g", "other", expires=world.now_ms() + 1000)
    world.pass_seconds(10 * RETENTION)
    assert world.committed("g") == {"followed", "other"}
    world.leave("g", member)
    world.pass_seconds(RETENTION + 1)
    assert not world.groups.directory.exists("g")


def test_during_a_rebalance_nothing_expires(world):
    """Only a stable group knows what its next generation follows (ClassicGroup.offsetExpirationCondition)."""
    world.commit("g", "other")
    world.join("g", sync=False)
    assert str(world.groups.directory.groups["g"].state) == "CompletingRebalance"
    world.pass_seconds(10 * RETENTION)
    assert world.committed("g") == {"other"}


def test_in_an_emptied_group_the_time_counts_from_when_the_last_member_left(world):
    member = world.join("g")
    world.commit("g", "followed")
    world.pass_seconds(5 * RETENTION)
    world.leave("g", member)
    world.pass_seconds(RETENTION - 2)
    assert world.committed("g") == {"followed"}
    member = world.join("g")  # somebody is back: the time stops
    world.pass_seconds(5 * RETENTION)
    assert world.committed("g") == {"followed"}
    world.leave("g", member)
    world.pass_seconds(RETENTION + 1)
    assert not world.groups.directory.exists("g")


@pytest.mark.parametrize("modern", [False, True])
def test_restarts_do_not_stop_the_time_of_an_empty_group(world, modern):
    """Kafka reads GroupMetadataValue.currentStateTimestamp back; a broker started every morning must forget, too."""
    if modern:
        world.beat("g")
        world.commit("g", "followed")
        world.beat("g", LEAVE_EPOCH)
    else:
        member = world.join("g")
        world.commit("g", "followed")
        world.leave("g", member)
    for _ in range(4):
        world.restart(after=RETENTION / 5)
        world.pass_seconds(1)
        assert world.committed("g") == {"followed"}
    world.restart(after=RETENTION / 5)
    world.pass_seconds(2)
    assert not world.groups.directory.exists("g")


@pytest.mark.parametrize("members", [True, False])
def test_an_expiry_of_its_own_counts_whatever_the_group_does(world, members):
    """OffsetCommit 2-4 may bring one (OffsetExpirationConditionImpl.isOffsetExpired looks at it first)."""
    member = world.join("g")
    world.commit("g", "other", expires=world.now_ms() + 5000)
    world.commit("g", "other", 1, expires=world.now_ms() + 1000 * round(3 * RETENTION))
    if not members:
        world.leave("g", member)
    world.pass_seconds(4)
    assert len(world.groups.directory.offsets["g"].committed) == 2
    world.pass_seconds(2)
    assert list(world.groups.directory.offsets["g"].committed) == [("other", 1)]
    world.pass_seconds(2 * RETENTION)
    assert list(world.groups.directory.offsets["g"].committed) == [("other", 1)]
    world.pass_seconds(RETENTION)
    assert world.committed("g") == set()


@pytest.mark.parametrize(("topics", "regex"), [(("followed",), None), ((), "follow.*"), ((), "fo.*d")])
def test_groups_of_the_new_protocol(world, topics, regex):
    world.beat("g", topics=topics, regex=regex)
    world.commit("g", "followed")
    world.commit("g", "other")
    world.pass_seconds(RETENTION + 1)
    assert world.committed("g") == {"followed"}
    world.pass_seconds(10 * RETENTION)
    assert world.committed("g") == {"followed"}
    world.beat("g", LEAVE_EPOCH)
    world.pass_seconds(RETENTION - 2)
    assert world.committed("g") == {"followed"}
    world.pass_seconds(3)
    assert not world.groups.directory.exists("g")
    world.restart()
    assert world.groups.listing() == []


def test_offsets_of_a_deleted_topic_go_at_once_in_live_groups_too(world):
    world.join("g")
    world.commit("g", "followed")
    world.commit("g", "other")
    world.groups.commits.topic_deleted("followed")
    assert world.committed("g") == {"other"}
    world.restart()
    assert world.committed("g") == {"other"}


@pytest.mark.parametrize("commit", [True, False])
def test_what_an_open_transaction_holds_does_not_expire(world, commit):
    """Neither the offset that it would replace nor its group (OffsetMetadataManager.hasPendingTransactionalOffsets)."""
    world.commit("g", "followed")
    world.commit("g", "followed", 1)
    world.commit("g", "followed", pending=5)
    world.pass_seconds(3 * RETENTION)
    assert list(world.groups.directory.offsets["g"].committed) == [("followed", 0)]
    world.groups.commits.forget("g", [("followed", 0)])
    world.commit("g", "other", pending=5)
    world.pass_seconds(3 * RETENTION)
    assert world.groups.directory.exists("g")  # nothing but what is pending
    world.restart(after=RETENTION)
    world.pass_seconds(2)
    assert world.groups.directory.exists("g")
    world.end("g", 5, commit)
    assert world.committed("g") == ({"other"} if commit else set())
    world.pass_seconds(2)  # old as it is, it goes like any other
    assert not world.groups.directory.exists("g")


def test_what_cannot_be_stored_does_not_happen(world, monkeypatch):
    world.commit("g", "followed")
    world.commit("empty", "followed")
    world.groups.commits.forget("empty", [("followed", 0)])

    def full(*_):
        raise LogError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(world.groups.directory.store, "write", full)
        world.pass_seconds(RETENTION + 2)
        assert world.committed("g") == {"followed"}
        assert "empty" in world.groups.directory.groups
        assert world.groups.delete("g") == errors.COORDINATOR_NOT_AVAILABLE
    world.pass_seconds(1)
    assert world.groups.listing() == []


OUTSIDE, MEMBER = ("", -1), ("m", 3)


@pytest.mark.parametrize(
    ("who", "version", "plain", "transactional"),
    [
        (OUTSIDE, 8, 0, 0),
        (OUTSIDE, 9, 0, 0),
        (MEMBER, 8, errors.ILLEGAL_GENERATION, errors.GROUP_ID_NOT_FOUND),
        (MEMBER, 9, errors.GROUP_ID_NOT_FOUND, errors.GROUP_ID_NOT_FOUND),
    ],
)
@pytest.mark.parametrize("how", ["deleted", "expired", "never there"])
def test_commits_to_a_group_that_is_gone(world, who, version, plain, transactional, how):
    """OffsetMetadataManager.validateOffsetCommit; a28_txn_offset_commit says it in the words of older versions."""
    if how != "never there":
        world.leave("g", world.join("g"))
        world.commit("g", "followed")
    if how == "deleted":
        assert world.groups.delete("g") == 0
    world.pass_seconds(RETENTION + 2)
    assert not world.groups.directory.exists("g")
    name, epoch = who
    assert world.groups.commits.check("g", Committer(name, None, epoch, [], version)) == plain
    assert world.groups.directory.exists("g") == (epoch < 0)  # from outside it makes the group anew
    if not world.groups.directory.exists("g"):
        assert (
            world.groups.commits.check("g", Committer(name, None, epoch, [], version, transactional=True))
            == transactional
        )


def test_a_dead_group_takes_no_commits(world):
    """ClassicGroup.validateOffsetCommit looks at that first, whoever commits."""
    world.leave("g", world.join("g"))
    group = world.groups.directory.groups["g"]
    assert world.groups.delete("g") == 0
    for member, generation in itertools.product(("", "m"), (-1, 0, 1)):
        for transactional in (False, True):
            by = Committer(member, None, generation, [], 8, transactional)
            assert group.check_commit(by, world.now) == errors.COORDINATOR_NOT_AVAILABLE
    assert group.check_offset_delete() == errors.GROUP_ID_NOT_FOUND


def test_a_group_with_members_is_not_deleted_and_an_emptied_one_with_everything(world):
    member = world.join("g")
    world.commit("g", "followed")
    world.commit("g", "other", pending=5)
    assert world.groups.delete("g") == errors.NON_EMPTY_GROUP
    world.leave("g", member)
    assert world.groups.delete("g") == 0
    world.end("g", 5, True)  # its offsets are not to come back
    assert not world.groups.directory.exists("g")
    world.restart()
    assert not world.groups.directory.exists("g")
    world.beat("n")
    assert world.groups.delete("n") == errors.NON_EMPTY_GROUP
    world.beat("n", LEAVE_EPOCH)
    assert world.groups.delete("n") == 0
    assert world.groups.delete("n") == errors.GROUP_ID_NOT_FOUND
    assert world.groups.delete("") == errors.INVALID_GROUP_ID
