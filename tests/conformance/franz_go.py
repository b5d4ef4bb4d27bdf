"""franz-go's client tests (produce, consume, classic and new groups, transactions), out of its Go module."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from pathlib import Path

from tests.proof.part import Results, Run, Skip

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
HASH = "h1:EdwIHGzD/4mgCpl/sNS0C74JYn6cL/r2KYS+8UC96Ww="  # as go.sum has it
SETTINGS = (
    "num.partitions=4",
    "group.min.session.timeout.ms=1000",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.min.session.timeout.ms=500",
)
RECORDS = 20_000  # that each of the long tests moves, times the size; upstream's default is 500,000
PARTITIONS = 7
BUILD_S = 600.0
TIMEOUT_S = 600.0
RESULT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+)")  # of a test at the top, not of a part of it
NOW = re.compile(r"=== (?:RUN|CONT|NAME) +(\S*)")
TOLD = re.compile(r" +\w+_test\.go:\d+: (?!deleting)")


def run(run: Run) -> Results:
    """All tests, in one run of the compiled program."""
    program, folder = built(run)
    results = Results()
    environment = {
        "KGO_LOG_LEVEL": "none", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS * run.size),
        "KGO_TEST_MAX_TOPIC_PARTS": str(PARTITIONS),
    }  # fmt: skip
    with run.broker(results, *SETTINGS) as broker:
        timeout_s = TIMEOUT_S * run.size
        words = [program, "-test.v", f"-test.timeout={timeout_s:.0f}s"]
        code, said = run.command(
            words, timeout_s + 30, folder=folder, environment={**environment, "KGO_SEEDS": broker.address}
        )
    read(said, results)
    if code and not results.failed:
        results.failed["the program"] = f"ended with {code}: {said[-1500:]}"
    return results


def read(said: str, results: Results) -> None:
    """Note the top-level tests of a program's output, with what those that fail say."""
    words: dict[str, list[str]] = defaultdict(list)
    current = ""
    for line in said.splitlines():
        if found := NOW.match(line):
            current = found[1].partition("/")[0]
        elif TOLD.match(line):
            words[current].append(line.strip())
        elif found := RESULT.match(line):
            verdict, name = found.groups()
            if verdict == "PASS":
                results.passed.append(name)
            elif verdict == "SKIP":
                results.skipped.append(name)
            else:
                results.failed[name] = "; ".join(words[name][-5:])


def built(run: Run) -> tuple[Path, Path]:
    """The compiled tests, kept between runs, and the folder of their source, where one of them reads it."""
    program = run.tools / f"kgo-{VERSION}.test"
    place = program.with_suffix(".folder")
    if program.exists() and place.exists() and (folder := Path(place.read_text())).exists():
        return program, folder
    go = shutil.which("go")
    if go is None and shutil.which("apt-get") and os.getuid() == 0:
        run.command(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "golang-go"], BUILD_S)
        go = shutil.which("go")
    if go is None:
        raise Skip("Go is not installed: https://go.dev/dl/")
    here = run.folder / "go"
    here.mkdir()
    (here / "go.mod").write_text("module proof\n")
    code, said = run.command([go, "mod", "download", "-json", f"{MODULE}@{VERSION}"], BUILD_S, folder=here)
    start = said.find("{")
    facts = json.loads(said[start : said.rfind("}") + 1]) if start >= 0 else {}
    if code or "Dir" not in facts:
        raise Skip(f"{MODULE} cannot be had from Go's module proxy: {' '.join(said.split())[-300:]}")
    if facts["Sum"] != HASH:
        raise RuntimeError(f"{MODULE} {VERSION} is not what was pinned: {facts['Sum']}, expected {HASH}")
    run.tools.mkdir(parents=True, exist_ok=True)
    part = program.with_suffix(f".{os.getpid()}.part")
    folder = Path(facts["Dir"]) / "pkg" / "kgo"
    code, said = run.command([go, "test", "-c", "-o", part, "."], BUILD_S, folder=folder)
    if code:
        raise Skip(f"its tests cannot be compiled with {go}: {' '.join(said.split())[-300:]}")
    part.replace(program)
    place.write_text(str(folder))
    return program, folder
