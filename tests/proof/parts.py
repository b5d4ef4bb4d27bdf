"""The list of the parts, and how much of each a size means: 1 is what continuous integration runs."""

from __future__ import annotations

import re
import sys
from functools import partial

from tests.conformance import aiokafka, franz_go, java, kafka_python, kcat
from tests.proof.part import Part, Results, Run, Skip
from tests.proof.suites import pytest

DIFFERENTIAL_EXAMPLES = 25  # sequences of up to 25 requests, times the size
EXAMPLE_S = 20.0  # no sequence takes nearly as long, being made small included
PAIR_S = 600.0  # no second point takes nearly as long, for all first ones together
KILLS = 100  # of a driver that writes topics, times the size
APPLICATIONS_S = 900.0  # the whole applications take a third of it
ROUND_S = 90.0  # no round of any torture takes nearly as long
SOAK_MINUTES = 1.0  # times the size
# Rounds of each torture at size 1.
TORTURES = {
    "kill": 5, "transactions": 4, "power": 5, "outage": 3, "points": 12, "eio": 2, "truncation": 3, "flips": 30, "full_disk": 1,
    "pause": 1, "churn": 2, "garbage": 3,
}  # fmt: skip
# What a torture that cannot run here says.
CANNOT = ("cannot be mounted here", "No such file or directory: 'cc'")


def differential(run: Run) -> Results:
    """The same random requests to our broker and to Apache Kafka."""
    results = Results()
    examples = DIFFERENTIAL_EXAMPLES * run.size
    more = {"MILLSTREAM_DIFFERENTIAL_EXAMPLES": str(examples)}
    timeout_s = 300 + EXAMPLE_S * examples
    pytest(run, sys.executable, ["tests/differential", "--timeout=0"], timeout_s, results, environment=more)
    results.note = f"{examples} sequences"
    return results


def exactly_once(run: Run) -> Results:
    """Batches into topics, their driver killed at each call, and a hundred times anywhere, on our broker and on Apache Kafka."""
    results = Results()
    more = {"MILLSTREAM_TEST_KILLS": str(KILLS * run.size)}
    words = ["tests/stores/test_topics.py", "-k", "killed", "--timeout=0"]
    pytest(run, sys.executable, words, 300 + 2 * KILLS * run.size, results, environment=more)
    results.note = f"{KILLS * run.size} kills"
    return results


def capture_pairs(run: Run) -> Results:
    """A capture killed at pairs of points, with a crash of its source between: `size` second points for each first one."""
    results = Results()
    more = {"MILLSTREAM_TEST_PAIRS": str(run.size)}
    words = ["tests/capture/test_crashes.py", "-k", "two_kills", "--timeout=0"]
    pytest(run, sys.executable, words, 300 + PAIR_S * run.size, results, environment=more)
    return results


def applications(run: Run) -> Results:
    """Whole applications: the examples killed twice under load, and state on a cluster whose workers are lost."""
    results = Results()
    words = ["tests/system/test_examples.py", "tests/system/test_cluster.py", "-m", "proof", "--timeout=0"]
    pytest(run, sys.executable, words, APPLICATIONS_S, results)
    return results


def torture(name: str, rounds: int, run: Run) -> Results:
    """Some rounds of a torture, with a seed of their own each time; the log has the seed that shows a failure again."""
    count = rounds * run.size
    words = ["-m", f"tests.torture.{name}", "--rounds", str(count)]
    results = Results()
    code, said = run.python(words, 120 + ROUND_S * count)
    tortured(code, said, [f"round {number + 1}" for number in range(count)], results)
    return results


def soak(run: Run) -> Results:
    """A mixed load for some minutes."""
    minutes = SOAK_MINUTES * run.size
    results = Results()
    code, said = run.python(["-m", "tests.torture.soak", "--minutes", str(minutes)], 120 + minutes * 60)
    tortured(code, said, [f"{minutes:g} minutes"], results)
    return results


def tortured(code: int, said: str, names: list[str], results: Results) -> None:
    """Note what a torture came to."""
    told = [line for line in said.splitlines() if not line.startswith("%")]  # librdkafka's own words
    if code == 0:
        results.passed += names
        results.note = told[-2] if len(told) > 1 else ""
        return
    if any(each in said for each in CANNOT):
        raise Skip(told[-1])
    seed = re.search(r"^seed \d+", said, re.M)
    results.failed[seed[0] if seed else "no seed"] = "\n".join(told)[-1500:]


PARTS = [
    Part("kcat", "conformance", kcat.run),
    Part("kafka-python", "conformance", kafka_python.run),
    Part("aiokafka", "conformance", aiokafka.run),
    Part("franz-go", "conformance", franz_go.run),
    Part("java", "conformance", java.run),
    Part("apache-kafka", "differential", differential),
    Part("exactly-once", "torture", exactly_once),
    Part("capture-pairs", "torture", capture_pairs),
    Part("applications", "torture", applications),
    *(Part(name, "torture", partial(torture, name, rounds)) for name, rounds in TORTURES.items()),
    Part("soak", "torture", soak),
]
