"""What suites of other people have in common: pinned packages in an environment of their own, and pytest's results read."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.proof.part import Results, Run, Skip

INSTALL_S = 600.0


def environment(run: Run, requirements: Path) -> Path:
    """The Python of a virtual environment with exactly the packages of a file that pins each by hash; kept between runs."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stamp = hashlib.sha256(requirements.read_bytes() + version.encode()).hexdigest()[:12]
    folder = run.tools / f"{requirements.stem}-{stamp}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _must(run, [sys.executable, "-m", "venv", folder])
        _must(run, [python, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", requirements])
        (folder / "complete").touch()
    return python


def source(run: Run, requirement: Path) -> Path:
    """A fresh copy of a package's source, as its source archive has it, pinned by hash; the archive is kept between runs."""
    name, _, version = requirement.read_text().split()[0].partition("==")
    archives = run.tools / f"{name}-{version}"
    if not list(archives.glob("*.tar.gz")):
        # pip checks the hash before it keeps the file.
        words = [
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            name,
            "--require-hashes",
            "--requirement",
            requirement,
        ]
        _must(run, [sys.executable, "-m", "pip", *words, "--dest", archives])
    [archive] = archives.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(run.folder / "source", filter="data")
    [folder] = (run.folder / "source").iterdir()
    return folder


def _must(run: Run, words: Sequence[str | Path]) -> None:
    code, said = run.command(words, INSTALL_S)
    if code:
        raise Skip(f"{' '.join(map(str, words[:6]))} … failed: {' '.join(said.split())[-300:]}")


def pytest(
    run: Run, python: str | Path, words: Sequence[str | Path], timeout_s: float, results: Results, *,
    folder: Path | None = None, environment: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Run tests with pytest and note what came of each."""
    report = run.folder / "report.xml"
    report.unlink(missing_ok=True)
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        f"--basetemp={run.folder / 'pytest'}",
        *words,
    ]
    code, said = run.command([python, *words], timeout_s, folder=folder, environment=environment)
    if not report.exists():
        results.failed["pytest"] = f"ended with {code} and without a report: {said[-1000:]}"
        return
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        bad = [case.find(kind) for kind in ("failure", "error")]
        found = next((each for each in bad if each is not None), None)
        if found is not None:
            results.failed[name] = f"{found.get('message')} {(found.text or '')[-500:]}"
        elif case.find("skipped") is not None:
            results.skipped.append(name)
        else:
            results.passed.append(name)
    if code not in (0, 1):
        results.failed["pytest"] = f"ended with {code}: {said[-1000:]}"
