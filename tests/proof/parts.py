"""The list of the parts, and how much of each a size means: 1 is what continuous integration runs."""

from __future__ import annotations

import re
import sys
from functools import partial

from tests.conformance import aiokafka, franz_go, java, kafka_python, kcat
from tests.proof.part import Part, Results, Run
from tests.proof.suites import pytest

DIFFERENTIAL_EXAMPLES = 25  # sequences of up to 25 requests, times the size
EXAMPLE_S = 20.0  # no sequence takes nearly as long, being made small included
ROUND_S = 90.0  # no round of any torture takes nearly as long
# Rounds of each torture at size 1.
TORTURES = {"kill": 3, "transactions": 4}


def differential(run: Run) -> Results:
    """The same random requests to our broker and to Apache Kafka."""
    results = Results()
    examples = DIFFERENTIAL_EXAMPLES * run.size
    more = {"MILLSTREAM_DIFFERENTIAL_EXAMPLES": str(examples)}
    timeout_s = 300 + EXAMPLE_S * examples
    pytest(run, sys.executable, ["tests/differential", "--timeout=0"], timeout_s, results, environment=more)
    results.note = f"{examples} sequences"
    return results


def torture(name: str, rounds: int, run: Run) -> Results:
    """Some rounds of a torture, with a seed of their own each time; the log has the seed that shows a failure again."""
    results = Results()
    code, said = run.python(
        ["-m", f"tests.torture.{name}", "--rounds", str(rounds * run.size)], 120 + ROUND_S * rounds * run.size
    )
    *_, last = said.strip().splitlines() or [""]
    for number in range(rounds * run.size if code == 0 else 0):
        results.passed.append(f"round {number + 1}")
    if code:
        seed = re.search(r"^seed \d+", said, re.M)
        results.failed[f"{seed[0] if seed else 'no seed'}"] = said[-1500:]
    results.note = last
    return results


PARTS = [
    Part("kcat", "conformance", kcat.run),
    Part("kafka-python", "conformance", kafka_python.run),
    Part("aiokafka", "conformance", aiokafka.run),
    Part("franz-go", "conformance", franz_go.run),
    Part("java", "conformance", java.run),
    Part("apache-kafka", "differential", differential),
    *(Part(name, "torture", partial(torture, name, rounds)) for name, rounds in TORTURES.items()),
]
