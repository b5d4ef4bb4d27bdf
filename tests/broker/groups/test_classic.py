"""The classic group as a state machine: rebalances, static members, timeouts; then random events against invariants."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_events import Join, Joined, Store, Sync, Synced
from millstream.broker.groups.classic_members import State
from millstream.broker.groups.group import Committer
from millstream.protocol import errors

JOIN = Join("", None, "client", "/host", 10.0, 60.0, "consumer", [("range", b"r"), ("roundrobin", b"rr")])


class Harness:
    """A group, a clock, and the answers to each request."""

    def __init__(self, **options) -> None:
        self.count = 0
        self.group = ClassicGroup("g", self.new_id, **options)
        self.now = 0.0
        self.stored = 0
        self.answers = {}

    def new_id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}-{self.count}"

    def carry_out(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                self.stored += 1
            else:
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect

    def join(self, token: str, **changes) -> Joined | None:
        self.carry_out(self.group.join(replace(JOIN, **changes), token, self.now))
        return self.answers.get(token)

    def enter(self, token: str, **changes) -> str:
        """Ask for an id, then join with it; the id."""
        asked = self.join(token + "?", **changes)
        assert asked.error == errors.MEMBER_ID_REQUIRED
        self.join(token, member_id=asked.member_id, **changes)
        return asked.member_id

    def sync(self, token: str, member: str, assignments=None, generation=None, instance=None) -> Synced | None:
        generation = self.group.generation if generation is None else generation
        self.carry_out(
            self.group.sync(Sync(member, instance, generation, None, None, assignments or {}), token, self.now)
        )
        return self.answers.get(token)

    def beat(self, member: str, generation=None) -> int:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member, None, generation, self.now)

    def leave(self, member: str, instance=None) -> int:
        [error] = self.leave_all((member, instance))
        return error

    def leave_all(self, *members) -> list[int]:
        codes, effects = self.group.leave(list(members), self.now)
        self.carry_out(effects)
        return codes

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.group.tick(self.now))

    def stable(self, *names: str) -> list[str]:
        """A stable group of these members; the first leads."""
        ids = [self.enter(names[0])]
        for name in names[1:]:
            ids.append(self.enter(name))
            for member in ids[:-1]:
                self.join(f"{member}-again-{name}", member_id=member)
        for member in ids:
            self.sync(f"{member}-sync", member, {m: m.encode() for m in ids})
        assert self.group.state is State.STABLE
        return ids


@pytest.fixture
def h():
    return Harness()


def test_a_first_member_leads_and_gets_what_it_assigns(h):
    member = h.enter("a")
    joined = h.answers["a"]
    assert (joined.error, joined.generation, joined.leader, joined.protocol) == (0, 1, member, "range")
    assert joined.members == [(member, None, b"r")]
    assert h.sync("s", member, {member: b"all"}).assignment == b"all"
    assert h.group.state is State.STABLE
    assert h.stored == 1


def test_a_second_member_makes_the_first_rejoin(h):
    [a] = h.stable("a")
    b = h.enter("b")
    assert "b" not in h.answers
    assert h.beat(a) == errors.REBALANCE_IN_PROGRESS
    h.join("a2", member_id=a)
    assert h.answers["a2"].generation == h.answers["b"].generation == 2
    assert len(h.answers["a2"].members) == 2
    assert h.answers["b"].members == []
    assert h.sync("sb", b) is None
    h.sync("sa", a, {a: b"1", b: b"2"})
    assert h.answers["sb"].assignment == b"2"
    assert h.beat(a) == h.beat(b) == 0


def test_an_old_client_joins_without_asking_for_an_id(h):
    assert h.join("a", id_first=False).error == 0


def test_wrong_generation_member_and_protocol(h):
    [a] = h.stable("a")
    assert h.beat(a, 0) == errors.ILLEGAL_GENERATION
    assert h.beat("nobody") == errors.UNKNOWN_MEMBER_ID
    assert h.sync("x", a, generation=7).error == errors.ILLEGAL_GENERATION
    assert h.join("b", protocols=[("other", b"")]).error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert h.join("c", protocol_type="connect").error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert h.join("d", protocols=[]).error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert h.join("e", member_id="nobody").error == errors.UNKNOWN_MEMBER_ID


def test_the_protocol_is_one_that_all_know(h):
    a = h.enter("a")
    h.enter("b", protocols=[("roundrobin", b"")])
    h.join("a2", member_id=a)
    assert h.answers["a2"].protocol == "roundrobin"


def test_a_silent_member_is_removed_and_the_others_rebalance(h):
    a, b = h.stable("a", "b")
    h.tick(6)
    h.beat(a)
    h.tick(6)
    assert h.group.state is State.PREPARING
    assert list(h.group.members) == [a]
    h.join("a3", member_id=a)
    assert h.answers["a3"].generation == 3
    assert h.beat(b) == errors.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_rejoin_is_dropped_at_the_rebalance_timeout(h):
    a, b = h.stable("a", "b")
    h.enter("c")
    h.join("a3", member_id=a)
    for _ in range(11):
        h.tick(6)
        h.beat(b)
    assert "c" in h.answers
    assert b not in h.group.members


def test_a_member_that_does_not_sync_is_dropped(h):
    a = h.enter("a")
    h.tick(61)
    assert h.group.members == {}
    h.tick(0)
    assert h.group.state is State.EMPTY
    assert h.beat(a) == errors.UNKNOWN_MEMBER_ID


def test_the_last_one_out_empties_the_group(h):
    [a] = h.stable("a")
    assert h.leave(a) == 0
    assert h.group.state is State.EMPTY
    assert h.group.generation == 2
    assert h.leave(a) == errors.UNKNOWN_MEMBER_ID


def test_members_that_leave_together_are_all_gone_before_the_others_go_on(h):
    a, b = h.stable("a", "b")
    h.join("b9", member_id=b, protocols=[("range", b"changed")])  # waits for the other one
    assert h.leave_all((a, None), (b, None), ("nobody", None)) == [0, 0, errors.UNKNOWN_MEMBER_ID]
    assert h.answers["b9"].error == errors.UNKNOWN_MEMBER_ID
    assert h.group.state is State.EMPTY


def test_an_id_that_is_given_back(h):
    """As in Kafka, the members rebalance for it."""
    [a] = h.stable("a")
    given = h.join("b").member_id
    assert h.leave(given) == 0
    assert h.group.state is State.PREPARING
    h.join("a2", member_id=a)
    assert h.answers["a2"].generation == 2


def test_a_given_id_that_is_not_used_is_forgotten(h):
    asked = h.join("a")
    assert h.group.next_deadline() == 10
    h.tick(10)
    assert h.join("b", member_id=asked.member_id).error == errors.UNKNOWN_MEMBER_ID


def test_a_leader_that_rejoins_starts_a_rebalance_a_follower_that_did_not_change_does_not(h):
    a, b = h.stable("a", "b")
    assert h.join("b9", member_id=b).generation == 2
    assert h.group.state is State.STABLE
    assert h.join("a9", member_id=a) is None
    assert h.group.state is State.PREPARING


def test_a_lost_answer_to_a_join_is_given_again(h):
    a = h.enter("a")
    assert h.join("again", member_id=a).generation == 1


def test_a_rebalance_during_the_sync_is_told_to_those_who_wait(h):
    a, b = h.stable("a", "b")
    h.enter("c")
    h.join("a5", member_id=a)
    h.join("b5", member_id=b)
    assert h.sync("sb", b) is None
    h.join("b6", member_id=b, protocols=[("range", b"changed")])
    assert h.answers["sb"].error == errors.REBALANCE_IN_PROGRESS


def test_a_static_member_comes_back_under_a_new_id_without_a_rebalance(h):
    first = h.join("a", instance_id="i")
    h.sync("s", first.member_id, {first.member_id: b"x"}, instance="i")
    back = h.join("a2", instance_id="i")
    assert (back.error, back.generation, back.skip) == (0, 1, True)
    assert back.member_id != first.member_id
    assert h.group.heartbeat(first.member_id, "i", 1, h.now) == errors.FENCED_INSTANCE_ID
    assert h.sync("s2", back.member_id, instance="i").assignment == b"x"
    assert h.leave("", "i") == 0
    assert h.leave("", "i") == errors.UNKNOWN_MEMBER_ID


def test_an_older_static_leader_is_not_made_leader_again(h):
    first = h.join("a", instance_id="i", may_skip=False)
    h.sync("s", first.member_id, {first.member_id: b"x"}, instance="i")
    back = h.join("a2", instance_id="i", may_skip=False)
    assert back.leader == first.member_id
    assert back.members == []


def test_a_static_member_with_another_subscription_rebalances(h):
    first = h.join("a", instance_id="i")
    h.sync("s", first.member_id, {first.member_id: b"x"}, instance="i")
    back = h.join("a2", instance_id="i", protocols=[("cooperative", b""), ("range", b"")])
    assert back.generation == 2


def test_the_first_rebalance_waits_for_more_members():
    h = Harness(initial_delay=3.0)
    h.enter("a")
    assert "a" not in h.answers
    assert h.group.next_deadline() == 3.0
    h.tick(1)
    h.enter("b")
    h.tick(2)
    assert "a" not in h.answers  # somebody came: once more
    h.tick(3)
    assert h.answers["a"].generation == h.answers["b"].generation == 1


def test_the_first_rebalance_waits_once_more_when_members_came_but_not_beyond_the_rebalance_timeout():
    h = Harness(initial_delay=3.0)
    h.enter("a", rebalance_seconds=8.0)
    for step in range(3):
        h.tick(2)
        h.enter(f"more {step}", rebalance_seconds=8.0)
        assert h.group.state is State.PREPARING
    h.tick(2)
    assert h.group.state is State.COMPLETING
    assert len(h.group.members) == 4


def test_the_first_rebalance_does_not_wait_for_ids_that_nobody_joins_with(h):
    """Two ids were given, as after a lost answer; the group goes on with the one that joins."""
    h.join("lost")
    h.enter("a")
    assert h.answers["a"].generation == 1
    assert h.group.pending


def test_a_later_rebalance_waits_for_a_given_id_until_its_session_ends(h):
    [a] = h.stable("a")
    h.tick(5)
    h.join("id only")
    h.join("a2", member_id=a)
    assert "a2" not in h.answers
    h.tick(10)
    assert h.answers["a2"].generation == 2


def test_who_leaves_the_first_rebalance_does_not_end_it():
    h = Harness(initial_delay=3.0)
    a = h.enter("a")
    h.enter("b")
    assert h.leave(a) == 0
    assert "b" not in h.answers
    h.tick(3)
    h.tick(3)
    assert h.answers["b"].generation == 1


def test_a_member_may_not_change_to_protocols_that_nobody_knows(h):
    """Not even the only one: Kafka compares with what it has itself (ClassicGroup.supportsProtocols)."""
    [a] = h.stable("a")
    refused = h.join("x", member_id=a, protocols=[("other", b"")])
    assert (refused.error, refused.member_id) == (errors.INCONSISTENT_GROUP_PROTOCOL, a)
    assert h.join("y", member_id=a, protocol_type="connect").error == errors.INCONSISTENT_GROUP_PROTOCOL
    assert h.join("z", member_id=a, protocols=[("other", b""), ("range", b"")]).error == 0


def test_a_member_that_only_beats_must_sync_before_the_rebalance_timeout(h):
    a, b = h.stable("a", "b")
    h.join("a3", member_id=a)
    h.join("b3", member_id=b)
    h.sync("s3", a, {a: b"x"})
    assert h.group.state is State.STABLE
    for _ in range(11):
        h.tick(6)
        h.beat(a)
        h.beat(b)
    assert list(h.group.members) == [a]
    assert h.beat(a) == errors.REBALANCE_IN_PROGRESS


def test_a_full_group():
    h = Harness(max_size=1)
    late = h.join("late").member_id
    h.enter("a")
    assert h.join("b").error == errors.GROUP_MAX_SIZE_REACHED
    refused = h.join("late2", member_id=late)
    assert (refused.error, refused.member_id) == (errors.GROUP_MAX_SIZE_REACHED, "")
    assert not h.group.pending


def test_topics_that_are_followed(h):
    subscription = bytes.fromhex("0001 00000001 0001 74 00000000 00000000")
    assert not h.group.follows("t")
    a = h.enter("a", protocols=[("range", subscription)])
    assert h.group.follows("t")
    assert not h.group.follows("u")
    h.sync("s", a, {})
    h.join("again", member_id=a, protocols=[("range", b"?")])
    assert h.group.follows("u")  # it cannot be read, so it may be any topic
    h.leave(a)
    assert not h.group.follows("t")
    assert h.group.check_offset_delete() == 0


def test_a_group_of_another_type_keeps_its_offsets_while_it_has_members(h):
    h.enter("a", protocol_type="connect")
    assert h.group.check_offset_delete() == errors.NON_EMPTY_GROUP
    assert not h.group.follows("t")


def test_commits(h):
    def check(member, instance, generation):
        return h.group.check_commit(Committer(member, instance, generation, [], 8), h.now)

    assert check("", None, -1) == 0
    a = h.enter("a")
    assert check(a, None, 1) == errors.REBALANCE_IN_PROGRESS
    h.sync("s", a, {})
    assert check(a, None, 1) == 0
    assert check(a, None, 2) == errors.ILLEGAL_GENERATION
    assert check("", None, -1) == errors.UNKNOWN_MEMBER_ID


def test_transactional_commits(h):
    """ClassicGroup.validateOffsetCommit."""

    def check(member, instance, generation):
        return h.group.check_commit(Committer(member, instance, generation, [], 3, transactional=True), h.now)

    assert check("whoever", None, -1) == 0  # nobody is there
    [a] = h.stable("a")
    assert check("", None, -1) == 0  # it does not say for whom (before KIP-447)
    assert check(a, None, 1) == 0
    assert check(a, None, -1) == check(a, None, 2) == errors.ILLEGAL_GENERATION
    assert check("nobody", None, -1) == check("", "instance", -1) == errors.UNKNOWN_MEMBER_ID


def test_deletion_answers_who_waits(h):
    a, _b = h.stable("a", "b")
    h.enter("c")
    h.join("a7", member_id=a)
    h.carry_out(h.group.die())
    assert h.answers["c"].error == h.answers["a7"].error == errors.COORDINATOR_NOT_AVAILABLE


class Machine(RuleBasedStateMachine):
    """Clients that come, go, stall and come back; the group must stay consistent and make progress."""

    def __init__(self) -> None:
        super().__init__()
        self.h = Harness(max_size=6)
        self.tokens = 0
        self.known: list[str] = []
        self.generation = 0

    def token(self) -> str:
        self.tokens += 1
        return f"t{self.tokens}"

    @rule(static=st.sampled_from([None, None, "i1", "i2"]))
    def come(self, static) -> None:
        token = self.token()
        joined = self.h.join(token, instance_id=static)
        if joined is not None and joined.member_id:
            self.known.append(joined.member_id)
        elif joined is None and static is not None:
            self.known.append(self.h.group.static[static])

    @precondition(lambda self: self.known)
    @rule(data=st.data(), changed=st.booleans())
    def rejoin(self, data, changed) -> None:
        member = data.draw(st.sampled_from(self.known))
        found = self.h.group.members.get(member)
        protocols = [("range", b"changed")] if changed else JOIN.protocols
        self.h.join(self.token(), member_id=member, instance_id=found and found.instance_id, protocols=protocols)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), stale=st.booleans())
    def sync(self, data, stale) -> None:
        member = data.draw(st.sampled_from(self.known))
        found = self.h.group.members.get(member)
        shares = {m: m.encode() for m in self.h.group.members}
        generation = self.h.group.generation - stale
        self.h.sync(self.token(), member, shares, generation, found and found.instance_id)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data) -> None:
        self.h.leave(data.draw(st.sampled_from(self.known)))

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0]))
    def wait(self, seconds) -> None:
        self.h.tick(seconds)

    @rule()
    def settle(self) -> None:
        """When every member that is left does its part, the group becomes stable."""
        group = self.h.group
        for _ in range(3):
            for member in list(group.members.values()):
                if member.joining is None and group.state is State.PREPARING:
                    self.h.join(
                        self.token(), member_id=member.id, instance_id=member.instance_id, protocols=member.protocols
                    )
            if group.pending:
                self.h.tick(10.0)
        for member in list(group.members.values()):
            if member.id in group.members and member.syncing is None:
                shares = {m: m.encode() for m in group.members}
                self.h.sync(self.token(), member.id, shares, None, member.instance_id)
        assert group.state in (State.STABLE, State.EMPTY)
        for member in group.members.values():
            assert member.assignment == member.id.encode() or member.instance_id is not None

    @invariant()
    def consistent(self) -> None:
        group = self.h.group
        assert group.generation >= self.generation
        self.generation = group.generation
        if group.state in (State.STABLE, State.COMPLETING):
            assert group.leader in group.members
            assert group.members
        if group.state is State.EMPTY:
            assert not group.members
        for instance, member in group.static.items():
            assert group.members[member].instance_id == instance
        for member in group.members.values():
            if group.state is State.STABLE:
                assert member.joining is None and member.syncing is None
        deadline = group.next_deadline()
        assert not group.members or deadline is not None


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
