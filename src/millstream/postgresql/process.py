"""The embedded PostgreSQL as a process; its arguments are the databases that must be there when it is ready."""

from __future__ import annotations

from millstream.app.process import Call
from millstream.postgresql import server
from millstream.postgresql.connect import ensure_database


def main(call: Call) -> None:
    """Run the server until asked to end."""

    def prepare(facts: dict[str, object]) -> None:
        for name in call.arguments:
            ensure_database(str(facts["postgres"]), name)
        call.ready(facts)

    server.run(call.settings.data / "postgres", 0, ready=prepare, stop=call.stop)
