"""The `[spark]` table of `millstream.toml`: any setting of Spark's, ours are defaults; what would break us is refused."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.settings.errors import MillstreamError

_EXACT = "Millstream's results rest on it"
_OURS = "Millstream chooses it for each query"
# What cannot be set, and why. A name that ends with a dot stands for all that begin with it.
REFUSED = {
    "spark.app.name": "the application's name is used",
    "spark.submit.deployMode": "the driver is a process of `millstream run`",
    "spark.jars.packages": "jars are pinned and checked; name files with spark.jars, which are added to ours",
    "spark.pyspark.driver.python": "the driver runs in the Python of `millstream run`",
    "spark.sql.ansi.enabled": f"{_EXACT}: with it off, what cannot be converted becomes null without a word",
    "spark.sql.artifact.isolation.enabled": "functions are loaded once for all queries",
    "spark.sql.caseSensitive": f"{_EXACT}: columns are found by Spark's usual rule",
    "spark.sql.catalogImplementation": "nothing is kept in a catalog",
    "spark.sql.session.timeZone": f"{_EXACT}: times are UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "batches are handed over as Arrow",
    "spark.sql.streaming.checkpointLocation": "give `checkpoints`: every query has a folder of its own in it",
    "spark.sql.streaming.checkpointFileManagerClass": _OURS,
    "spark.sql.streaming.stateStore.providerClass": "state is kept in RocksDB, which real-time queries and bounded memory need",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "real-time queries need the second format",
    "spark.sql.streaming.useStreamlineAggregator": _OURS,
    "spark.sql.variant.allowDuplicateKeys": f"{_EXACT}: of two equal keys in an event the last one counts",
    "spark.remote": "queries need a driver of their own; Spark Connect has none here",
    "spark.connect.": "queries need a driver of their own; Spark Connect has none here",
    "spark.api.mode": "queries need a driver of their own; Spark Connect has none here",
}


def options(table: Mapping[str, object], origin: str) -> dict[str, str]:
    """Return Spark's settings by their full names, from a table of TOML: nested tables or dotted names, with or without `spark.`.

    Raises MillstreamError for a value that is no text, number or truth value, and for a setting that would break us.
    """
    found: dict[str, str] = {}
    for key, value in _flat(table, ""):
        name = key if key.startswith("spark.") else f"spark.{key}"
        for refused, why in REFUSED.items():
            if name == refused or (refused.endswith(".") and name.startswith(refused)):
                raise MillstreamError(f"{origin}: [spark] {name} cannot be set: {why}. Remove it.")
        if isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)
        else:
            raise MillstreamError(f"{origin}: [spark] {name} must be text, a number, true or false, got {value!r}.")
    return found


def _flat(table: Mapping[str, object], prefix: str) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
