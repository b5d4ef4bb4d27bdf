"""Fixtures: one broker for all tests of a file that do not need their own."""

import pytest

from tests.broker.serving import Process


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Process(tmp_path_factory.mktemp("broker") / "data", "group.min.session.timeout.ms=100") as process:
        yield process
