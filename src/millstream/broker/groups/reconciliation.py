"""Which member of a group of the new protocol has which partitions, and how one comes nearer to what it is to have.

A partition is given to a member only when the one that had it has let go of it, so that no two read it at once.

Source: Kafka's CurrentAssignmentBuilder, ConsumerGroup.currentPartitionEpoch; KIP-848.
"""

from __future__ import annotations

from millstream.broker.groups.consumer_members import STABLE, UNRELEASED, UNREVOKED, Member, Partitions, overlap


class Owners:
    """The owner of each partition: who has it, or has yet to let go of it."""

    def __init__(self) -> None:
        self._owners: dict[tuple[bytes, int], str] = {}

    def own(self, member: Member) -> None:
        """Note what a member has, and since which of its epochs."""
        places = _places(member)
        member.since = {place: member.since.get(place, member.epoch) for place in places}
        for place in places:
            self._owners[place] = member.id

    def disown(self, member: Member) -> None:
        """A member is about to change, or gone."""
        for place in _places(member):
            if self._owners.get(place) == member.id:
                del self._owners[place]

    def waiting(self, member: Member, target: Partitions) -> bool:
        """Whether a member still waits for partitions that others have (ConsumerGroup.waitingOnUnreleasedPartition)."""
        return member.state == UNRELEASED and any(
            index not in member.assigned.get(topic, set()) and (topic, index) in self._owners
            for topic, indexes in target.items()
            for index in indexes
        )

    def reconcile(self, member: Member, target: Partitions, epoch: int, owned: Partitions | None, now: float) -> None:
        """Bring a member one step nearer to its target of an epoch; `owned` is what it says that it has."""
        reached = member.epoch
        if member.state == UNREVOKED:
            if owned is None or overlap(owned, member.revoking):
                return
            self.disown(member)
            member.revoking, member.revoke_deadline, member.state = {}, None, STABLE
            self.own(member)
            reached += 1
        elif member.state == STABLE and member.epoch == epoch:
            return
        kept: Partitions = {}
        given: Partitions = {}
        revoked: Partitions = {}
        waiting = False
        for topic in set(target) | set(member.assigned):
            have, want = member.assigned.get(topic, set()), target.get(topic, set())
            if have & want:
                kept[topic] = have & want
            if have - want:
                revoked[topic] = have - want
            for index in want - have:
                if self._owners.get((topic, index)) in (None, member.id):
                    given.setdefault(topic, set()).add(index)
                else:
                    waiting = True
        self.disown(member)
        member.previous_epoch = member.epoch
        if revoked and (owned is None or overlap(owned, revoked)):
            member.epoch, member.state = reached, UNREVOKED
            member.assigned, member.revoking = kept, revoked
            if member.classic is None:  # a classic one has to join again in time instead
                member.revoke_deadline = now + member.rebalance_seconds
        else:
            member.epoch, member.state = epoch, UNRELEASED if waiting else STABLE
            member.assigned = {topic: kept.get(topic, set()) | given.get(topic, set()) for topic in {**kept, **given}}
        self.own(member)


def _places(member: Member) -> list[tuple[bytes, int]]:
    held = (member.assigned, member.revoking)
    return [(topic, index) for partitions in held for topic, indexes in partitions.items() for index in indexes]
