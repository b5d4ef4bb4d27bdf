"""Server-side assignors of the new group protocol (KIP-848): which member should have which partitions. Pure.

Both keep what members have where balance allows. `uniform` spreads all partitions evenly; `range` gives each
subscriber a run of consecutive partitions of each topic, the same run in topics of the same size (for joins).
"""

from __future__ import annotations

from collections.abc import Mapping

Topic = bytes  # a topic's id
Target = dict[str, dict[Topic, set[int]]]  # member -> topic -> partitions


def uniform(subscriptions: Mapping[str, set[Topic]], partitions: Mapping[Topic, int], before: Target) -> Target:
    """Every member within one partition of every other, as far as subscriptions allow; moves as few as possible."""
    target: Target = {member: {} for member in subscriptions}
    loads = dict.fromkeys(subscriptions, 0)
    subscribers: dict[Topic, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            subscribers.setdefault(topic, []).append(member)
    owned: dict[tuple[Topic, int], str] = {}
    for member, topics in before.items():
        for topic, indexes in topics.items():
            if member in subscriptions and topic in subscriptions[member]:
                owned.update({(topic, index): member for index in indexes if index < partitions.get(topic, 0)})
    total = sum(partitions.get(topic, 0) for topic in subscribers)
    alike = len({frozenset(topics) for topics in subscriptions.values()}) == 1
    quota, extra = divmod(total, len(subscriptions)) if subscriptions else (0, 0)
    free = []
    for topic in sorted(subscribers):
        for index in range(partitions.get(topic, 0)):
            owner = owned.get((topic, index))
            if owner is not None and alike:  # no more than a fair share; `extra` members may have one more
                if loads[owner] >= quota and not (loads[owner] == quota and extra):
                    owner = None
                elif loads[owner] == quota:
                    extra -= 1
            if owner is None:
                free.append((topic, index))
            else:
                target[owner].setdefault(topic, set()).add(index)
                loads[owner] += 1
    for topic, index in sorted(free, key=lambda place: len(subscribers[place[0]])):
        member = min(subscribers[topic], key=lambda m: loads[m])
        target[member].setdefault(topic, set()).add(index)
        loads[member] += 1
    if not alike:
        _level(target, loads, subscribers)
    return target


def _level(target: Target, loads: dict[str, int], subscribers: dict[Topic, list[str]]) -> None:
    """Move partitions from members with more to members with fewer, while that makes them more equal."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(loads, key=lambda m: -loads[m]):
            for topic, indexes in list(target[giver].items()):
                taker = min(subscribers[topic], key=lambda m: loads[m])
                if loads[giver] - loads[taker] < 2:
                    continue
                index = max(indexes)
                indexes.discard(index)
                if not indexes:
                    del target[giver][topic]
                target[taker].setdefault(topic, set()).add(index)
                loads[giver] -= 1
                loads[taker] += 1
                moved = True


def ranges(subscriptions: Mapping[str, set[Topic]], partitions: Mapping[Topic, int], before: Target) -> Target:
    """Consecutive partitions of each topic for each of its subscribers, in member order."""
    target: Target = {member: {} for member in subscriptions}
    topics = {topic for wanted in subscriptions.values() for topic in wanted}
    for topic in sorted(topics):
        members = sorted(member for member, wanted in subscriptions.items() if topic in wanted)
        share, extra = divmod(partitions.get(topic, 0), len(members))
        first = 0
        for position, member in enumerate(members):
            count = share + (position < extra)
            if count:
                target[member][topic] = set(range(first, first + count))
            first += count
    return target


ASSIGNORS = {"uniform": uniform, "range": ranges}
