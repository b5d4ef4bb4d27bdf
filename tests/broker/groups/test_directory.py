"""A kind of group that nobody knew before: one class for its groups, one that carries them out, and a registration."""

from __future__ import annotations

import pytest

from millstream.broker.groups.classic_events import Join
from millstream.broker.groups.consumer_members import JOIN_EPOCH, Heartbeat
from millstream.broker.groups.group import Group, Kind
from millstream.protocol import errors
from millstream.protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue
from tests.broker.groups.test_coordinator import RETENTION, World, world  # noqa: F401

BEAT = Heartbeat("m", JOIN_EPOCH, rebalance_seconds=60.0, topics=frozenset(["followed"]), owned={})
JOIN = Join("", None, "c", "/h", 30.0, 60.0, "consumer", [("range", b"")], id_first=False)


class PartyKey(GroupMetadataKey):
    API_KEY = 99


class Party:
    kind, protocol_type, convertible, settled, state = "party", "fun", False, True, "Dancing"

    def __init__(self, id, members=()):
        self.id, self.members, self.since, self.ends = id, set(members), 0.0, None

    empty = unused = property(lambda self: not self.members)
    emptied = property(lambda self: None if self.members else self.since)

    def subscribed(self):
        return {"followed"}

    def follows(self, topic):
        return bool(self.members) and topic == "followed"

    def next_deadline(self):
        return self.ends

    def restored(self, now):
        self.since = now

    def check_commit(self, by, now):
        return 0 if by.member_id in self.members else errors.UNKNOWN_MEMBER_ID

    def check_fetch(self, member_id, epoch):
        return 0

    def check_offset_delete(self):
        return 0


class Parties:
    records = frozenset({PartyKey.API_KEY})

    def __init__(self, directory):
        self.directory = directory
        self.over = []

    def open(self, name):
        party = self.directory.groups[name] = Party(name, ["guest"])
        value = GroupMetadataValue("fun", 1, None, "guest", 0, [])
        assert self.directory.write(name, [(PartyKey(name), value, 3)]) == 0
        return party

    def read(self, record, written):
        name = PartyKey.decode(record.key, 0).group
        if record.value is None:
            del self.directory.groups[name]
        else:
            self.directory.groups[name] = Party(name, ["guest"])

    def removal(self, group):
        return [(PartyKey(group.id), None, 0)]

    def removed(self, group):
        self.over.append(group.id)

    def tick(self, group, now):
        group.ends = None
        group.members.clear()


@pytest.fixture
def parties(world):  # noqa: F811
    return register(world)


def register(world):  # noqa: F811
    made = Parties(world.groups.directory)
    world.groups.directory.kinds["party"] = made
    return made


def test_it_is_listed_asked_followed_and_deleted(world: World, parties):  # noqa: F811
    kind: Kind = parties
    group: Group = kind.open("p")
    assert world.groups.listing() == [("p", "fun", "Dancing", "party")]
    world.commit("p", "followed")
    world.pass_seconds(RETENTION + 2)
    assert world.committed("p") == {"followed"}  # somebody follows it
    assert world.groups.delete("p") == errors.NON_EMPTY_GROUP
    group.members.clear()
    assert world.groups.delete("p") == 0
    assert parties.over == ["p"] and not world.groups.directory.exists("p")


def test_no_other_kind_takes_its_name(world, parties):  # noqa: F811
    party = parties.open("p")
    for _ in range(2):
        assert world.groups.consumer.heartbeat("p", BEAT).error == errors.GROUP_ID_NOT_FOUND
        assert world.groups.join("p", JOIN).result().error == errors.INCONSISTENT_GROUP_PROTOCOL
        assert world.groups.heartbeat("p", "m", None, 1) == errors.UNKNOWN_MEMBER_ID
        assert world.groups.leave("p", [("m", None)]) == [errors.UNKNOWN_MEMBER_ID]
        party.members.clear()  # not even when it is empty


def test_its_clock_and_its_end(world, parties):  # noqa: F811
    party = parties.open("p")
    party.ends = world.now + 5
    world.groups.directory.schedule("p")
    world.pass_seconds(4)
    assert party.members
    world.pass_seconds(2)
    assert not party.members and not world.groups.directory.exists("p")  # nothing is left of it
    assert parties.over == ["p"]


def test_it_is_read_back(world, parties, monkeypatch):  # noqa: F811
    parties.open("p")
    parties.open("q").members.clear()
    assert world.groups.delete("q") == 0
    load = type(world.groups).load

    def registered(self):
        self.directory.kinds["party"] = Parties(self.directory)
        load(self)

    monkeypatch.setattr(type(world.groups), "load", registered)
    world.restart()
    assert list(world.groups.directory.groups) == ["p"]
