"""A broker for tests: the real process on a free port, in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


class Process:
    """``python -m millstream.broker``; keeps its port when started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.settings = settings
        self.address = "127.0.0.1:0"
        self.more: list[str] = []  # further arguments
        self.environment: dict[str, str] = {}
        self.listeners: dict[str, str] = {}  # addresses by protocol, when there are several
        self.log = folder.with_suffix(".stderr")
        self.popen: subprocess.Popen[str] | None = None

    def start(self) -> "Process":
        command = [sys.executable, "-m", "millstream.broker", "--data", str(self.folder), "--listen", self.address]
        for setting in self.settings:
            command += ["--set", setting]
        command += self.more
        with self.log.open("a") as log:
            self.popen = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **self.environment}
            )
        line = self.popen.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()[-3000:]
        facts = json.loads(line[6:])
        self.listeners = facts.get("listeners", {})
        self.address = ",".join(f"{p}://{a}" for p, a in self.listeners.items()) or facts["kafka"]
        return self

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(how)
        code = self.popen.wait(20)
        self.popen.stdout.close()
        return code

    def __enter__(self) -> "Process":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.end()
