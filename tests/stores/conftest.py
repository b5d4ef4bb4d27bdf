"""One PostgreSQL server for the room's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.postgresql.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An embedded PostgreSQL."""
    with Server(tmp_path_factory.mktemp("postgres") / "server") as running:
        yield running
