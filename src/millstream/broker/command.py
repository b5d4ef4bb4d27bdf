"""The broker as a command: arguments, one line when it is ready, errors without tracebacks."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import stat
import sys
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from millstream.broker.logs import to_stderr
from millstream.broker.security.listeners import CannotStart, Listener
from millstream.broker.server import serve
from millstream.broker.settings import Settings, SettingsError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="millstream broker",
        description="A broker that speaks Kafka's protocol, over one data folder.",
        epilog="example: millstream broker --data ./log --listen 127.0.0.1:9092 --set num.partitions=4",
    )
    made.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder of the log; made if missing")
    made.add_argument(
        "--listen",
        default="127.0.0.1:9092",
        metavar="[PROTOCOL://]HOST:PORT,...",
        help="PLAINTEXT (if not named), SSL, SASL_PLAINTEXT or SASL_SSL; beyond loopback SASL_SSL only; port 0 picks one",
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, by Apache Kafka's name; repeatable"
    )
    made.add_argument(
        "--add-scram",
        action="append",
        default=[],
        metavar="SCRAM-SHA-256=[name=NAME,password=env:VARIABLE]",
        help="make a user, or change its password (also file:PATH; SCRAM-SHA-512); kept in DIR as keys; repeatable",
    )
    made.add_argument("--verbose", action="store_true", help="log what happens on connections too")
    made.add_argument("--stop-with-stdin", action="store_true", help="end when standard input ends (for supervisors)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the broker until it is asked to end; returns the exit code."""
    options = parser().parse_args(arguments)
    to_stderr(logging.DEBUG if options.verbose else logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        settings = Settings.parse(options.set)
        if options.stop_with_stdin:
            _stop_with_stdin()
        _run(serve(options.data, options.listen, settings, _ready, options.add_scram))
    except (CannotStart, SettingsError) as e:
        print(f"millstream broker: {e}", file=sys.stderr)
        return 1
    return 0


def _ready(listeners: list[Listener]) -> None:
    facts: dict[str, object] = {"kafka": listeners[0].address}
    if len(listeners) > 1:
        facts["listeners"] = {each.protocol: each.address for each in listeners}
    print(f"ready {json.dumps(facts)}", flush=True)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not on every system; asyncio's own loop does the same, slower
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def _stop_with_stdin() -> None:
    """End like SIGTERM when the process at the other end of standard input is gone."""
    if not (stat.S_ISFIFO(os.fstat(0).st_mode) or stat.S_ISSOCK(os.fstat(0).st_mode)):
        raise SettingsError("--stop-with-stdin: expected standard input to be a pipe")

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), 15)

    threading.Thread(target=watch, name="stdin", daemon=True).start()
