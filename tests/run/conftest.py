"""Fixtures of the supervision's tests."""

import pytest

from tests.run.supervision import Children, Recorder


@pytest.fixture
def children(tmp_path):
    return Children(tmp_path)


@pytest.fixture
def recorder(tmp_path):
    return lambda *parts, **more: Recorder(tmp_path, parts, **more)
