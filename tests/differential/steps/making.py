"""What every kind of step shares: what it makes, and the parameters that many have."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.differential.world import World

Step = tuple[str, dict[str, Any]]
Parameters = dict[str, st.SearchStrategy[Any]]


class Made(NamedTuple):
    """A request of a step, its version, and what to learn from the answer.

    ``parked``: who asks, for a request that a broker may answer only after later steps; it has a connection of its own.
    """

    request: Any
    version: int
    learn: Callable[[Any], None] | None = None
    parked: str = ""


class Kind(NamedTuple):
    """A kind of step: how often it comes, what makes it (a request, or at once the normal answer), its parameters."""

    weight: int
    make: Callable[[World, dict[str, Any]], Any]
    parameters: Parameters


TOPICS = st.sampled_from([0, 0, 0, 1, 2])
PARTITIONS = st.sampled_from([0, 0, 0, 0, 1, 2, -1])
PLACE: Parameters = {"topic": TOPICS, "partition": PARTITIONS}
PRODUCERS = st.sampled_from([0, 0, 0, 1])
OFFSETS = st.sampled_from([0, 0, 1, 2, 3, 7, -1, -2, 1 << 40])
SOME = st.booleans()
# Groups 0 and 1 are classic, 1 with static members; 2 and 3 are of the new protocol, 3 with static members.
CLASSIC = st.sampled_from([0, 0, 0, 1])
CONSUMER = st.sampled_from([2, 2, 2, 3])
GROUPS = st.sampled_from([0, 0, 0, 1, 2, 2, 3])
SLOTS = st.sampled_from([0, 0, 0, 1])
EPOCHS = st.sampled_from([0] * 6 + [-1, 1])
