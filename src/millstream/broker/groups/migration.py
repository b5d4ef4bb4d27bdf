"""A group that changes its protocol while it has members: classic to new, and back (KIP-848's online migration).

Members keep their ids, their place and what they have: the generation becomes the group's epoch and every member's epoch,
and the other way round. Pure: what must be stored, and who has to be answered, the caller sees from the groups.

Source: Kafka's ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from enum import StrEnum

from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_members import Member as ClassicGroupMember
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_classic import named
from millstream.broker.groups.consumer_members import ClassicMember, Member, Partitions
from millstream.broker.groups.subscription import read_assignment, read_subscription, write_assignment


class Policy(StrEnum):
    """`group.consumer.migration.policy`: which way a group with members may go."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """From classic to the new protocol."""
        return self in (Policy.UPGRADE, Policy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        """From the new protocol to classic."""
        return self in (Policy.DOWNGRADE, Policy.BIDIRECTIONAL)


def upgrade(classic: ClassicGroup, group: ConsumerGroup, now: float) -> None:
    """Make a new, empty group out of a classic one of consumers. Raises ProtocolError: their bytes cannot be read."""
    topics = group.resolve()
    group.epoch = group.target_epoch = classic.generation
    for old in classic.members.values():
        said = read_subscription(old.metadata(classic.protocol) or old.protocols[0][1])  # before the first generation
        assigned: Partitions = {
            topics[name][0]: indexes for name, indexes in read_assignment(old.assignment).items() if name in topics
        }
        group.members[old.id] = Member(
            old.id,
            old.instance_id,
            said.rack_id,
            old.client_id,
            old.client_host,
            old.rebalance_seconds,
            frozenset(said.topics),
            epoch=classic.generation,
            previous_epoch=classic.generation,
            assigned=assigned,
            classic=ClassicMember(old.session_seconds, old.protocols),
        )
        group.target[old.id] = {topic: set(indexes) for topic, indexes in assigned.items()}
    group.converted(now)


def downgrade(group: ConsumerGroup, classic: ClassicGroup, leaving: frozenset[str], now: float) -> None:
    """Make a new, empty classic group out of one whose members, but for those that leave, are classic.

    Raises ProtocolError: their bytes cannot be read.
    """
    staying = [member for member in group.members.values() if member.id not in leaving]
    classic.generation = group.epoch
    classic.protocol_type = "consumer"
    for member in staying:
        assert member.classic is not None
        classic.adopt(
            ClassicGroupMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_seconds,
                member.rebalance_seconds,
                list(member.classic.protocols),
                deadline=now + member.classic.session_seconds,
            )
        )
    classic.settle(now)
    for old in classic.members.values():
        target = named(group, group.target.get(old.id, {}))
        old.assignment = write_assignment(target, old.metadata(classic.protocol))
