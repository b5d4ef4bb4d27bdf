"""The proof's command: runs the parts one after the other and prints a line each; ends with 1 when a failure is not listed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.proof.expected import EXPECTED
from tests.proof.part import ROOT, Run, perform
from tests.proof.parts import PARTS
from tests.proof.summary import failures, line, totals


def main() -> int:
    """Run the parts that the arguments name; returns the exit code."""
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="scripts/proof", description=__doc__)
    parser.add_argument(
        "size", nargs="?", type=int, default=1, help="1: what continuous integration runs; 10: ten times as many rounds"
    )
    parser.add_argument("--only", metavar="PART,…", default=",".join(names), help=f"of {', '.join(names)}")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if options.size < 1 or not set(wanted) <= set(names):
        parser.error(f"expected a size from 1 and parts out of {', '.join(names)}")
    logs = ROOT / "build" / "proof"
    logs.mkdir(parents=True, exist_ok=True)
    print(f"proof of size {options.size}; what each part says is in {logs.relative_to(ROOT)}/", flush=True)
    everything = []
    for part in PARTS:
        if part.name not in wanted:
            continue
        with TemporaryDirectory(prefix=f"proof-{part.name}-") as folder:
            done = perform(part, Run(options.size, Path(folder), logs / f"{part.name}.log"))
        everything.append(done)
        print(line(done, EXPECTED), flush=True)
        for text in failures(done, EXPECTED):
            print(text, flush=True)
    text, holds = totals(everything, EXPECTED)
    print(f"{sum(done.seconds for done in everything):.0f} s in all")
    print(text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
