"""The steps of a sequence: each makes a request for a broker's world and learns from the answer."""

from typing import Any

from hypothesis import strategies as st

from tests.differential.steps import bad, groups, messages, topics, transactions
from tests.differential.steps.making import Kind, Made, Step
from tests.differential.world import World

STEPS: dict[str, Kind] = {**topics.STEPS, **messages.STEPS, **transactions.STEPS, **groups.STEPS, **bad.STEPS}


def step() -> st.SearchStrategy[Step]:
    """One step with its parameters."""
    names = [name for name, kind in STEPS.items() for _ in range(kind.weight)]
    return st.sampled_from(names).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name].parameters))
    )


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
