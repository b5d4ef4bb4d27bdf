"""The same random requests to our broker and to Apache Kafka 4.4: the same answers.

``MILLSTREAM_DIFFERENTIAL_EXAMPLES`` sequences (20 if not set); with ``MILLSTREAM_DIFFERENTIAL_SURVEY=1`` every
difference of the run is collected and printed instead of the first one being made small.
"""

import collections
import os
import uuid
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.apache_kafka import apache_kafka
from tests.broker.serving import Process
from tests.differential.differences import explained
from tests.differential.steps import play, step
from tests.differential.world import World

pytestmark = pytest.mark.system
EXAMPLES = int(os.environ.get("MILLSTREAM_DIFFERENTIAL_EXAMPLES", "20"))
SURVEY = bool(os.environ.get("MILLSTREAM_DIFFERENTIAL_SURVEY"))
STEPS = 25
FIRST = ("create", {"topic": 0, "count": 2, "factor": 1, "settings": [], "only": False})


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("differential")
    (folder / "kafka").mkdir()
    with Process(folder / "ours") as ours:
        address = os.environ.get("MILLSTREAM_TEST_KAFKA")
        with nullcontext(address) if address else apache_kafka(folder / "kafka") as kafka:
            found = ours.address, address or kafka.bootstrap
            for each in found:
                # Both partitions of each of Kafka's coordinator topics must be led.
                for _ in range(4):
                    world = World(each, uuid.uuid4().hex[:8])
                    world.warm()
                    world.close()
            yield found


def compare(brokers, steps, report=None):
    """Play the steps on both brokers."""
    run = uuid.uuid4().hex[:8]
    worlds = [World(address, run) for address in brokers]
    try:
        for number, each in enumerate([FIRST, *steps]):
            ours, kafkas = (play(world, each) for world in worlds)
            if ours == kafkas:
                continue
            if explained(each, ours, kafkas):
                if each[0] == "produce":
                    return  # the logs differ from here on
                continue
            text = f"step {number}: {each}\nours:  {ours}\nKafka: {kafkas}"
            if report is not None:
                report(each, ours, kafkas, [FIRST, *steps][:number])
                return
            raise AssertionError(text)
    finally:
        for world in worlds:
            world.close()


def test_the_same_requests_have_the_same_answers(brokers):
    found = collections.OrderedDict()

    def report(each, ours, kafkas, before):
        key = (each[0], each[1].get("batch", ""))
        found.setdefault(key, []).append((each, ours, kafkas, before))

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate] if SURVEY else [Phase.explicit, Phase.generate, Phase.shrink],
    )
    @example([])
    @given(st.lists(step(), min_size=8, max_size=STEPS))
    def run(steps):
        compare(brokers, steps, report if SURVEY else None)

    run()
    if found:
        lines = []
        for key, cases in found.items():
            each, ours, kafkas, before = min(cases, key=lambda c: len(c[3]))
            played = before if "silent" in (ours, kafkas) else [b[0] for b in before]
            lines.append(f"{key} ({len(cases)})\n  {each}\n  ours:  {ours}\n  Kafka: {kafkas}\n  after: {played}")
        pytest.fail("\n".join(lines))
