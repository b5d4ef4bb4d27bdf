"""What tests of several rooms share. Nothing here starts before a test asks for it: fast tests never see a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 8  # for the real-time queries of tests, which hold their tasks as long as they run


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests, as an application has it. Whoever starts a query stops it.

    `ms.testing.run` takes the session that is there and starts a smaller one otherwise; tests of it ask for this one first,
    since a process can have only one.
    """
    from millstream.settings import Settings
    from millstream.spark.session import session

    settings = Settings(data=tmp_path_factory.mktemp("spark"), cache=Settings.load().cache)
    started = session("tests", settings, slots=SLOTS, more={"spark.sql.shuffle.partitions": "2"})
    yield started
    started.stop()
