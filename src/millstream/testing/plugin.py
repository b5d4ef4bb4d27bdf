"""The pytest plugin of the package: one Spark session for a test run, and applications that a module's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.testing.harness import Running


@pytest.fixture(scope="session")
def millstream_spark() -> SparkSession:
    """The Spark session that `ms.testing.run` uses, for frames of your own."""
    from millstream.testing import spark_session

    return spark_session()


@pytest.fixture(scope="module")
def millstream_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """`millstream_running(app, prepare={…})` runs an application until the module's tests are over; see `ms.testing.running`."""
    from millstream.testing import running

    with ExitStack() as stack:

        def start(app: Any, **options: Any) -> Running:
            return stack.enter_context(running(app, tmp_path_factory.mktemp(app.name), **options))

        yield start
