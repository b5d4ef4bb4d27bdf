"""Fixtures: one broker for all tests of a file that do not need their own. Tests of a running broker are system tests."""

import pytest

from tests.broker.serving import Process

RUNNING = {"broker", "guarded"}  # fixtures that start one


def pytest_itemcollected(item):
    if RUNNING & set(item.fixturenames):
        item.add_marker(pytest.mark.system)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Process(tmp_path_factory.mktemp("broker") / "data", "group.min.session.timeout.ms=100") as process:
        yield process
