"""kafka-python's integration tests (admin, classic and new groups, producer, transactions), out of its source package."""

from __future__ import annotations

from pathlib import Path

from tests.proof.part import Results, Run
from tests.proof.suites import environment, pytest, source

HERE = Path(__file__).parent
KAFKA = "4.3.0"  # what the tests take the broker for: the newest version that they know
SETTINGS = (
    "num.partitions=4",
    "group.min.session.timeout.ms=1000",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
)
# They start a broker of their own from Kafka's distribution, with certificates; tests/broker/security has ours.
LEFT_OUT = ("test_ssl_integration.py", "test_sasl_integration.py")
TIMEOUT_S = 600.0
# What the source package leaves out of its tests (MANIFEST.in takes test_*.py), as far as a broker that runs already needs it.
MISSING = {
    "__init__.py": "",
    "service.py": """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = open


class SpawnedService:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("these tests run against a broker that is there")
""",
}


def run(run: Run) -> Results:
    """All but what starts a broker of its own."""
    results = Results()
    python = environment(run, HERE / "kafka_python.txt")
    folder = source(run, HERE / "kafka_python_source.txt")
    (folder / "servers" / KAFKA / "kafka-bin" / "bin").mkdir(parents=True)  # only has to exist: the broker is ours
    for name, text in MISSING.items():
        (folder / "test" / name).write_text(text)
    words: list[str | Path] = ["test/integration", "--timeout=120", "-o", "log_level=WARNING"]
    for name in LEFT_OUT:
        words += ["--ignore", f"test/integration/{name}"]
    for _ in range(run.size):
        with run.broker(results, *SETTINGS) as broker:
            more = {"KAFKA_URI": f"kafka://{broker.address}", "KAFKA_VERSION": KAFKA}
            pytest(run, python, words, TIMEOUT_S, results, folder=folder, environment=more)
    return results
