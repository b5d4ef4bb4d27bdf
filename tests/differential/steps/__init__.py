"""The steps of a sequence: each makes a request for a broker's world and learns from the answer."""

from typing import Any

from hypothesis import strategies as st

from tests.differential.steps import bad, groups, messages, settings, topics, transactions
from tests.differential.steps.making import Kind, Made, Step
from tests.differential.world import World

STEPS: dict[str, Kind] = {
    **topics.STEPS,
    **messages.STEPS,
    **transactions.STEPS,
    **groups.STEPS,
    **settings.STEPS,
    **bad.STEPS,
}


def step(*kinds: str, **fixed: Any) -> st.SearchStrategy[Step]:
    """One step, of these kinds or of any, with its parameters, some of which may be given."""
    names = [name for name in kinds or STEPS for _ in range(STEPS[name].weight)]
    return st.sampled_from(names).flatmap(
        lambda name: st.tuples(
            st.just(name), st.fixed_dictionaries(STEPS[name].parameters).map(lambda p: {**p, **fixed})
        )
    )


# What clients do one after the other, so that sequences get into the middle of things; the rest is left to chance.
RIGHT = {"producer": 0, "epoch": 0}
HERE = {**RIGHT, "topic": 0, "partition": 0}
BEGIN = step("init", **RIGHT, transactional=True, timeout=60_000, keep=False)
MINE: dict[str, Any] = {"who": "mine", "generation": 0, "session": 120_000, "type": "consumer", "protocols": ["range"]}
STORIES = (
    # A transaction of version 1, and what may become of it.
    st.tuples(
        BEGIN,
        step("add partitions", **HERE, version=3),
        step("produce", **HERE, batch="transactional", version=9, acks=-1),
        step("fetch", "offsets", "init", "produce", "add offsets", "commit in transaction", "producers", **RIGHT),
        step("end", "init", **RIGHT),
        step("fetch", topic=0, partition=0, offset=0, isolation=1, leader=-1),
    ),
    # One of version 2.
    st.tuples(
        BEGIN,
        step("produce", **HERE, batch="transactional", version=12, acks=-1),
        step("commit in transaction", **HERE, version=5, metadata="m", member=False),
        step("end", "init", "committed", "delete offsets", "commit", **RIGHT),
        step("end", **RIGHT, version=5),
        step("committed", topic=0),
        step("produce", **HERE, batch="transactional", version=12, acks=-1),
    ),
    # Two members of a classic group.
    st.tuples(
        step("join", **MINE, group=0, slot=0, version=5),
        step("join", **MINE, group=0, slot=0, version=5),
        step("sync", **MINE, group=0, slot=0, version=3),
        step("join", **MINE, group=0, slot=1, version=5),
        step("join", **MINE, group=0, slot=1, version=5),
        step("heartbeat", "leave", "join", "commit", "describe group", **MINE, group=0, slot=0),
        step("join", **MINE, group=0, slot=0, version=5),
        step("sync", "leave", **MINE, group=0, slot=1),
        step("sync", **MINE, group=0, slot=0, version=3),
        step("commit", "heartbeat", "describe group", "delete offsets", "committed", **MINE, group=0),
    ),
    # Static members.
    st.tuples(
        step("join", **MINE, group=1, slot=0, version=5),
        step("sync", **MINE, group=1, slot=0, version=3),
        step("join", **{**MINE, "who": "none"}, group=1, slot=0),
        step("sync", "heartbeat", "leave", "commit", group=1, slot=0),
    ),
    # Two members of the new protocol.
    st.tuples(
        step("beat", group=2, slot=0, kind="join", topics=[0]),
        step("beat", group=2, slot=1, kind="join", topics=[0]),
        step("beat", group=2, slot=0, kind="next", owned="told", change=False),
        step("beat", group=2, slot=0, kind="next", owned="told", change=False),
        step("beat", "commit", "committed", group=2),
        step("commit", "beat", "commit in transaction", group=2, topic=0),
    ),
    # A fetch session.
    st.tuples(
        step("fetch in session", kind="begin", topic=0, partition=0, offset=0),
        step("produce", "delete", "delete records", topic=0, partition=0),
        step("fetch in session", kind="go on"),
        step("fetch in session", kind="go on"),
    ),
)


def sequence(longest: int) -> st.SearchStrategy[list[Step]]:
    """Steps by chance, and stories between them."""

    def joined(parts: list[Any]) -> list[Step]:
        return [each for part in parts for each in (part if isinstance(part[0], tuple) else (part,))][:longest]

    part = st.one_of(step(), step(), step(), step(), *STORIES)
    return st.lists(part, min_size=4, max_size=longest).map(joined)


def play(world: World, step: Step) -> Any:
    """Do a step; its normal answer, or "parked" if that may come later."""
    name, parameters = step
    made = STEPS[name].make(world, parameters)
    if not isinstance(made, Made):
        return made
    if made.parked:
        world.park(made.parked, made.request, made.version, made.learn)
        return "parked"
    answer = world.ask(made.request, made.version)
    if isinstance(answer, str):
        return answer
    if made.learn is not None:
        made.learn(answer)
    return world.normal(answer)
