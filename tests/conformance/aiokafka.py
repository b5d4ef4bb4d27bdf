"""aiokafka's tests against a broker. Its packages do not hold them; aiokafka_tests/ does."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.proof.part import Results, Run
from tests.proof.suites import environment, pytest

HERE = Path(__file__).parent
UPSTREAM = HERE / "aiokafka_tests"
TESTS_SHA256 = "705863b9e5c1249289df2c0fe33d9fa6a6b84302aff3e871296e000d097c3293"
SETTINGS = ("num.partitions=2", "group.min.session.timeout.ms=1000")
TIMEOUT_S = 900.0


def run(run: Run) -> Results:
    """All but what needs certificates of the image that upstream runs its broker from."""
    if (found := fingerprint(UPSTREAM / "tests")) != TESTS_SHA256:
        raise ValueError(
            f"{UPSTREAM} is not what upstream has: its tests have the SHA-256 {found}, expected {TESTS_SHA256}"
        )
    results = Results()
    python = environment(run, HERE / "aiokafka.txt")
    folder = run.folder / "source"
    shutil.copytree(UPSTREAM, folder)
    (folder / "tests" / "conftest.py").rename(folder / "tests" / "_upstream_conftest.py")
    shutil.copy(HERE / "aiokafka_fixtures.py", folder / "tests" / "conftest.py")
    words = ["tests", "--docker-image", "ext:2.13_4.4.0", "--no-pull", "--timeout=120", "-m", "not ssl"]
    for _ in range(run.size):
        with run.broker(results, *SETTINGS) as broker:
            more = {"BOOTSTRAP": broker.address}
            pytest(run, python, words, TIMEOUT_S, results, folder=folder, environment=more)
    return results


def fingerprint(folder: Path) -> str:
    """One hash over the names and contents of the test files in a folder."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
