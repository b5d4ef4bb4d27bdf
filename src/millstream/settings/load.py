"""Settings: flags win over environment variables, which win over `millstream.toml`, which wins over what is embedded."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millstream.settings.addresses import Kafka, redact, resolve
from millstream.settings.errors import MillstreamError
from millstream.settings.spark import options as spark_options

FILE = "millstream.toml"
_KNOWN = ("data", "cache", "kafka", "postgres", "spark", "checkpoints", "sources", "console_origins")
_SOURCE_VARIABLE = "MILLSTREAM_SOURCE_"
# Beside data and cache, which a child always gets.
_ADDRESSES = ("KAFKA", "KAFKA_OPTIONS", "POSTGRES", "SPARK", "SPARK_OPTIONS", "CHECKPOINTS", "CONSOLE_ORIGINS")
_VARIABLES = tuple(f"MILLSTREAM_{name}" for name in _ADDRESSES)


@dataclass(frozen=True)
class Settings:
    """Where an application finds its parts. What has no address runs embedded, in the data folder.

    data: folder of everything that the application keeps (mode 0700); default `.millstream` in the working folder.
    cache: folder of downloads that all applications share (the connector's jars); default `~/.cache/millstream`.
    kafka: the log's address, or None for the embedded broker.
    postgres: the libpq connection string of the store of views, or "" for the embedded PostgreSQL.
    sources: connection strings of the source databases by name; a name without one means the embedded PostgreSQL.
    spark: the Spark master URL, or "" for Spark on this machine.
    console_origins: where a tunnel or proxy shows the page, such as "https://page.example"; by default it answers for loopback.
    spark_options: settings of Spark's own by their full names (`spark.…`), which win over ours.
    checkpoints: folder of the queries' positions and state, which every worker of a cluster has under the same path; None for the
        data folder.
    """

    data: Path = Path(".millstream")
    cache: Path = field(default_factory=lambda: _default_cache())
    kafka: Kafka | None = None
    postgres: str = field(default="", repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark: str = ""
    spark_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoints: Path | None = None
    console_origins: tuple[str, ...] = ()

    @classmethod
    def embedded(cls, data: Path) -> Settings:
        """Return settings without any address, whatever `millstream.toml` and the environment say: everything runs in `data`."""
        cache = os.environ.get("MILLSTREAM_CACHE")
        return cls(data=data, cache=Path(cache).expanduser() if cache else _default_cache())

    @classmethod
    def inherited(cls) -> Settings:
        """Read the environment alone: what a child process does that was started with `environment()`."""
        return cls._of(_from_environment(os.environ), "environment")

    @classmethod
    def load(cls, flags: Mapping[str, str | None] | None = None, *, folder: Path | None = None) -> Settings:
        """Read `millstream.toml` in `folder` (default: the working folder), the environment and `flags`, the later the stronger.

        flags: the keys data, cache, kafka, postgres, spark, checkpoints; None or absent means not given.
        Raises MillstreamError for an unknown key, an unreadable file, a wrong type or a missing secret.
        """
        values, origin = _from_file((folder or Path()) / FILE)
        values = {**values, **_from_environment(os.environ)}
        values.update({k: v for k, v in (flags or {}).items() if v is not None})
        return cls._of(values, origin)

    @classmethod
    def _of(cls, values: Mapping[str, object], origin: str) -> Settings:
        kafka_options = {
            k: _text(v, f"[kafka] {k}", origin) for k, v in _table(values, "kafka_options", origin).items()
        }
        bootstrap = _text(values.get("kafka", ""), "kafka", origin)
        if kafka_options and not bootstrap:
            raise MillstreamError(f'{origin}: [kafka] has options but no address. Add address = "host:port".')
        return cls(
            data=Path(_text(values.get("data", ".millstream"), "data", origin)).expanduser(),
            cache=Path(_text(values["cache"], "cache", origin)).expanduser()
            if values.get("cache")
            else _default_cache(),
            kafka=Kafka(resolve(bootstrap, "kafka"), {k: resolve(v, f"kafka {k}") for k, v in kafka_options.items()})
            if bootstrap
            else None,
            postgres=resolve(_text(values.get("postgres", ""), "postgres", origin), "postgres"),
            sources={
                name: resolve(_text(v, f"sources.{name}", origin), f"sources.{name}")
                for name, v in _table(values, "sources", origin).items()
            },
            spark=_text(values.get("spark", ""), "spark", origin),
            console_origins=_texts(values.get("console_origins", []), "console_origins", origin),
            spark_options={
                k: resolve(v, f"spark {k}")
                for k, v in spark_options(_table(values, "spark_options", origin), origin).items()
            },
            checkpoints=_folder(_text(values.get("checkpoints", ""), "checkpoints", origin), origin),
        )

    def environment(self) -> dict[str, str]:
        """Return the variables from which a child process loads these settings and nothing else (see `inherited`).

        What our own environment has beside them is blanked.
        """
        variables = {
            **{name: "" for name in os.environ if name.startswith(_SOURCE_VARIABLE) or name in _VARIABLES},
            "MILLSTREAM_DATA": str(self.data.absolute()),
            "MILLSTREAM_CACHE": str(self.cache.absolute()),
        }
        if self.kafka:
            variables["MILLSTREAM_KAFKA"] = self.kafka.bootstrap
            if self.kafka.options:
                variables["MILLSTREAM_KAFKA_OPTIONS"] = json.dumps(dict(self.kafka.options))
        if self.postgres:
            variables["MILLSTREAM_POSTGRES"] = self.postgres
        if self.spark:
            variables["MILLSTREAM_SPARK"] = self.spark
        if self.console_origins:
            variables["MILLSTREAM_CONSOLE_ORIGINS"] = " ".join(self.console_origins)
        if self.spark_options:
            variables["MILLSTREAM_SPARK_OPTIONS"] = json.dumps(dict(self.spark_options))
        if self.checkpoints:
            variables["MILLSTREAM_CHECKPOINTS"] = str(self.checkpoints)
        return variables | {_SOURCE_VARIABLE + name.upper(): address for name, address in self.sources.items()}

    @property
    def log(self) -> Kafka:
        """The log's address. Raises MillstreamError where none is known yet: the embedded broker's, before it is ready."""
        if self.kafka is None:
            raise MillstreamError("no log is known: give its address (kafka), or let `millstream run` start one.")
        return self.kafka

    def only(self, parts: frozenset[str]) -> Settings:
        """Return the settings with just the addresses of `parts`: "kafka", "postgres", "spark", "sources.<name>"."""
        return replace(
            self,
            kafka=self.kafka if "kafka" in parts else None,
            postgres=self.postgres if "postgres" in parts else "",
            spark=self.spark if "spark" in parts else "",
            spark_options=self.spark_options if "spark" in parts else {},
            sources={name: address for name, address in self.sources.items() if f"sources.{name}" in parts},
        )

    @property
    def checkpoint_root(self) -> Path:
        """The folder of the queries' positions and state."""
        return self.checkpoints or self.data.absolute() / "checkpoints"

    def source(self, name: str) -> str:
        """Return the connection string of the source database `name`, or "" when it is embedded."""
        return self.sources.get(name) or self.sources.get(name.lower(), "")

    def __str__(self) -> str:
        parts = [f"data={self.data}"]
        if self.kafka:
            parts.append(f"kafka={self.kafka.bootstrap}")
        if self.postgres:
            parts.append(f"postgres={redact(self.postgres)}")
        if self.spark:
            parts.append(f"spark={self.spark}")
        return " ".join(parts + [f"sources.{name}={redact(address)}" for name, address in self.sources.items()])


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "millstream"


def _folder(text: str, origin: str) -> Path | None:
    """Return a folder from a path or a file: URL, or None for no text."""
    if not text:
        return None
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        text = "/" + rest.lstrip("/")
    elif colon and len(scheme) > 1 and "/" not in scheme:
        raise MillstreamError(
            f"{origin}: checkpoints must be a folder that the driver and every worker have under the same path, got {text!r}."
            " An object store is reached through a mounted file system."
        )
    return Path(text).expanduser().absolute()


def _from_file(path: Path) -> tuple[dict[str, object], str]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}, "settings"
    except OSError as error:
        raise MillstreamError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        values: dict[str, object] = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MillstreamError(f"{path} is not valid TOML: {error}.") from error
    for key in values:
        if key not in _KNOWN:
            near = difflib.get_close_matches(key, _KNOWN, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise MillstreamError(f"{path}: unknown setting {key!r}; known are {', '.join(_KNOWN)}.{hint}")
    if isinstance(kafka := values.get("kafka"), dict):
        values["kafka"] = kafka.get("address", "")
        values["kafka_options"] = {k: v for k, v in kafka.items() if k != "address"}
    if isinstance(spark := values.get("spark"), dict):
        values["spark"] = spark.get("master", "")
        values["spark_options"] = {k: v for k, v in spark.items() if k != "master"}
    return values, str(path)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key in ("data", "cache", "kafka", "postgres", "spark", "checkpoints"):
        if value := environment.get(f"MILLSTREAM_{key.upper()}"):
            values[key] = value
    if origins := environment.get("MILLSTREAM_CONSOLE_ORIGINS"):
        values["console_origins"] = origins.split()
    for key, of in (("kafka_options", "client properties"), ("spark_options", "Spark's settings")):
        if options := environment.get(f"MILLSTREAM_{key.upper()}"):
            try:
                values[key] = json.loads(options)
            except ValueError as error:
                raise MillstreamError(f"MILLSTREAM_{key.upper()} must be a JSON object of {of}: {error}.") from error
    sources = {
        k[len(_SOURCE_VARIABLE) :].lower(): v for k, v in environment.items() if k.startswith(_SOURCE_VARIABLE) and v
    }
    return values | ({"sources": sources} if sources else {})


def _text(value: object, key: str, origin: str) -> str:
    if not isinstance(value, str):
        raise MillstreamError(f"{origin}: {key} must be a string, got {value!r}.")
    return value


def _texts(value: object, key: str, origin: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MillstreamError(f"{origin}: {key} must be a list of strings, got {value!r}.")
    return tuple(value)


def _table(values: Mapping[str, object], key: str, origin: str) -> dict[str, object]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise MillstreamError(f"{origin}: {key} must be a table of names and values, got {table!r}.")
    return table
