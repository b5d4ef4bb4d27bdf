"""`run.json` and `ports.json` in the data folder: what runs there now, and which ports its servers had.

run.json (version 1, mode 0600, replaced atomically, gone when nothing runs):
  {"version": 1, "run": id, "app": name, "pid": the supervisor's, "processes": {name: pid},
   "addresses": {"kafka": "host:port", "postgres": conninfo, "console": url}}
  Addresses are those of embedded parts that are ready; what the settings give is not among them. After the supervisor was killed
  the file is left over: `current` tells whether it is true, `left_over` is for the one who takes the folder over.
ports.json (version 1): {"version": 1, "ports": {process: port}}: servers come back where clients look for them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millstream.run.lock import held
from millstream.settings.files import replace

RUN = "run.json"
PORTS = "ports.json"
VERSION = 1


@dataclass
class Running:
    """What runs in a data folder."""

    run: str
    app: str
    pid: int
    processes: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict, repr=False)

    def write(self, data: Path) -> None:
        """Write run.json, whole or not at all."""
        _replace(data / RUN, {"version": VERSION, **asdict(self)})


def current(data: Path) -> Running | None:
    """Return what runs in the data folder now, or None. Touches nothing."""
    return left_over(data) if held(data) else None


def left_over(data: Path) -> Running | None:
    """Return what run.json says, true or not; None when it is absent or not of this version."""
    found = _read(data / RUN)
    try:
        return Running(
            run=str(found["run"]),
            app=str(found["app"]),
            pid=int(found["pid"]),
            processes={str(name): int(pid) for name, pid in found["processes"].items()},
            addresses={str(key): str(value) for key, value in found.get("addresses", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def remove(data: Path) -> None:
    """Remove run.json: nothing runs any more."""
    (data / RUN).unlink(missing_ok=True)


def read_ports(data: Path) -> dict[str, int]:
    """Return the remembered port of each server."""
    ports = _read(data / PORTS).get("ports")
    return {str(k): v for k, v in ports.items() if isinstance(v, int)} if isinstance(ports, dict) else {}


def write_ports(data: Path, ports: Mapping[str, int]) -> None:
    """Remember the port of each server."""
    _replace(data / PORTS, {"version": VERSION, "ports": dict(ports)})


def port_is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)  # binding alone succeeds beside a listener that has SO_REUSEADDR too
        except OSError:
            return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("version") == VERSION else {}


def _replace(path: Path, value: Mapping[str, object]) -> None:
    # Not synced: it is written at every change of a process, and after a power cut nothing runs that it could tell of.
    replace(path, json.dumps(value, indent=1).encode(), sync=False)
