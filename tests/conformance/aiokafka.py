"""aiokafka's tests against a broker. Its packages do not hold them: MILLSTREAM_PROOF_AIOKAFKA names a checkout of 0.14.0."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tests.proof.part import Results, Run, Skip
from tests.proof.suites import environment, pytest

HERE = Path(__file__).parent
VARIABLE = "MILLSTREAM_PROOF_AIOKAFKA"
TESTS_SHA256 = "dc65987246083ae10f83697bef39665cdb82e2bb0caa408bc838b6b0a0ca41e4"
SETTINGS = ("num.partitions=2", "group.min.session.timeout.ms=1000")
# Those that talk to a broker; the others test aiokafka alone.
FILES = (
    *("admin", "client", "conn", "consumer", "coordinator", "fetcher", "pep492", "producer", "sender"),
    *("transactional_consumer", "transactional_producer"),
)
TIMEOUT_S = 900.0


def run(run: Run) -> Results:
    """All but what needs certificates of the image that upstream runs its broker from."""
    given = os.environ.get(VARIABLE)
    if not given:
        raise Skip(f"its packages do not hold its tests; set {VARIABLE} to a checkout of aio-libs/aiokafka at v0.14.0")
    checkout = Path(given)
    if (found := fingerprint(checkout / "tests")) != TESTS_SHA256:
        raise Skip(f"{VARIABLE}={given} is not a checkout of v0.14.0: its tests have the SHA-256 {found}")
    results = Results()
    python = environment(run, HERE / "aiokafka.txt")
    # Not in the checkout: its aiokafka/ is not compiled, and would be imported instead of the installed one.
    folder = run.folder / "source"
    shutil.copytree(checkout / "tests", folder / "tests")
    shutil.copy(checkout / "pyproject.toml", folder)
    (folder / "tests" / "conftest.py").rename(folder / "tests" / "_upstream_conftest.py")
    shutil.copy(HERE / "aiokafka_fixtures.py", folder / "tests" / "conftest.py")
    words: list[str | Path] = [Path("tests") / f"test_{name}.py" for name in FILES]
    words += ["--docker-image", "ext:2.13_4.4.0", "--no-pull", "--timeout=120", "-m", "not ssl"]
    for _ in range(run.size):
        with run.broker(results, *SETTINGS) as broker:
            more = {"BOOTSTRAP": broker.address}
            pytest(run, python, words, TIMEOUT_S, results, folder=folder, environment=more)
    return results


def fingerprint(folder: Path) -> str:
    """One hash over the names and contents of the test files in a folder, or "none"."""
    names = sorted(folder.glob("*.py"))
    whole = hashlib.sha256()
    for path in names:
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest() if names else "none"
