"""What the flights demo costs: time from an empty folder to the summary, memory of all its processes, and what idling takes.

Runs `millstream demo` in a fresh data folder as often as asked, with everything that is downloaded already in the cache. The
last one is left running (--keep) and watched while nothing arrives.

Memory is PSS (each process's own pages, and its share of those it has in common with others), summed over the process tree and
sampled each half second. CPU is user and system time of the whole tree, ended children included.

    scripts/bench demo            or: python bench/demo.py --days 7 --repeats 3 --idle 60
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

SAMPLE_S = 0.5
SUMMARY_S = 600.0  # the longest a demo may take
STOP_S = 60.0
SETTLE_S = 20.0  # after the summary: the last batches commit, the JVM's compiler comes to rest
MB = 1024 * 1024


@dataclass
class Tree:
    """What a process tree has taken so far: bytes of PSS now and at most (also by part), seconds of CPU."""

    root: psutil.Process
    peak: int = 0
    peak_parts: dict[str, int] = field(default_factory=dict)
    now: int = 0

    def sample(self) -> None:
        """Measure once."""
        parts: dict[str, int] = {}
        for process in [self.root, *self.root.children(recursive=True)]:
            with suppress(psutil.Error):
                name = part(process)
                parts[name] = parts.get(name, 0) + process.memory_full_info().pss
        self.now = sum(parts.values())
        if self.now > self.peak:
            self.peak, self.peak_parts = self.now, parts

    def cpu(self) -> float:
        """Return the CPU seconds of every process that lives, and of the children each has waited for."""
        total = 0.0
        for process in [self.root, *self.root.children(recursive=True)]:
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total


def part(process: psutil.Process) -> str:
    """Return what a process is to the application: the part that it runs, or else the program."""
    words: list[str] = process.cmdline()
    if "-m" not in words:
        return str(process.name())
    module, *more = words[words.index("-m") + 1 :]
    return more[0] if module == "millstream.run.child" else "supervisor" if module == "millstream" else module


@contextmanager
def demo(days: int, folder: Path) -> Iterator[tuple[Tree, IO[bytes]]]:
    """Run a demo and watch its memory; it ends with the block."""
    command = [sys.executable, "-m", "millstream", "demo", "--days", str(days), "--speed", "max"]
    command += ["--keep", "--json", "--data", str(folder)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        tree, stop = Tree(psutil.Process(process.pid)), threading.Event()
        sampler = threading.Thread(target=lambda: sampling(tree, stop), daemon=True)
        sampler.start()
        try:
            yield tree, out
        finally:
            stop.set()
            sampler.join()
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def sampling(tree: Tree, stop: threading.Event) -> None:
    """Sample until told to stop."""
    while not stop.wait(SAMPLE_S):
        with suppress(psutil.Error):
            tree.sample()


def summary(out: IO[bytes], tree: Tree) -> dict[str, Any]:
    """Wait for the demo's summary and return it."""
    deadline = time.monotonic() + SUMMARY_S
    while time.monotonic() < deadline:
        with suppress(ValueError):
            text = os.pread(out.fileno(), 1 << 24, 0)
            return dict(json.loads(text))
        if not tree.root.is_running() or tree.root.status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    raise SystemExit("the demo ended without a summary; run it by hand to see why: millstream demo")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="time, memory and idle cost of the flights demo")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to watch the idle application")
    options = parser.parse_args()
    print(f"{'run':<8}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'events':>9}{'events/s':>10}  right")
    costs: list[tuple[float, float, float]] = []
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            with demo(options.days, Path(folder) / "data") as (tree, out):
                found = summary(out, tree)
                costs.append((time.perf_counter() - began, tree.cpu(), tree.peak / MB))
                right = "yes" if found["ok"] else "NO"
                row(
                    f"{repeat + 1}", costs[-1], f"{found['events_in']:>9,}{found['events_per_second']:>10,.0f}  {right}"
                )
                if repeat == options.repeats - 1:
                    row("median", tuple(statistics.median(values) for values in zip(*costs, strict=True)))
                    idle(tree, options.idle)


def idle(tree: Tree, seconds: float) -> None:
    """Watch an application to which nothing comes, and print what that takes."""
    time.sleep(SETTLE_S)
    begin, before = time.perf_counter(), tree.cpu()
    time.sleep(seconds)
    share = (tree.cpu() - before) / (time.perf_counter() - begin)
    print(f"idle for {seconds:.0f} s: {share:.1%} of one core, {tree.now / MB:.0f} MB")
    parts = sorted(tree.peak_parts.items(), key=lambda entry: -entry[1])
    print("at the peak: " + ", ".join(f"{name} {size / MB:.0f} MB" for name, size in parts))


def row(name: str, cost: tuple[float, ...], rest: str = "") -> None:
    """Print one line of the table; `cost` is seconds of wall, seconds of CPU, and MB."""
    wall, cpu, peak = cost
    print(f"{name:<8}{wall:>8.1f}{cpu:>8.1f}{peak:>9.0f}{rest}", flush=True)


if __name__ == "__main__":
    main()
