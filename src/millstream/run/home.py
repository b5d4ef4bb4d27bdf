"""`home.json` in the data folder: which application is at home there, and the addresses that it was run with.

home.json (version 1, mode 0600): {"version": 1, "app": name, "kafka": "host:port" | "", "postgres": conninfo | "",
"inputs": {group: [topic]}}. Addresses are those that the settings gave, without passwords; "" means embedded. Commands use
them when nothing else says where the parts are, so that `--kafka` need not be repeated.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from millstream.app.graph import Graph
from millstream.app.names import group
from millstream.settings import Settings

FILE = "home.json"
VERSION = 1
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


@dataclass(frozen=True)
class Home:
    """What a data folder knows. inputs: the topics that each query's group reads."""

    app: str = ""
    kafka: str = ""
    postgres: str = ""
    inputs: dict[str, list[str]] = field(default_factory=dict)


def remember(data: Path, graph: Graph, settings: Settings) -> None:
    """Write what an application is run with; called when it starts."""
    inputs: dict[str, list[str]] = {}
    for source, target in graph.edges:
        (place, _, topic), (kind, _, query) = source.partition(":"), target.partition(":")
        if place == "topic" and kind == "query":
            inputs.setdefault(group(graph.app, query), []).append(topic)
    kafka = settings.kafka.bootstrap if settings.kafka else ""
    home = Home(graph.app, kafka, _without_secrets(settings.postgres), inputs)
    fresh = data / f"{FILE}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump({"version": VERSION, **asdict(home)}, file, indent=1)
    fresh.replace(data / FILE)


def recall(data: Path) -> Home:
    """Return what the folder knows; nothing of a file that is absent or not understood."""
    try:
        found = json.loads((data / FILE).read_bytes())
        if found["version"] != VERSION:
            return Home()
        inputs = {str(name): [str(topic) for topic in topics] for name, topics in found["inputs"].items()}
        return Home(str(found["app"]), str(found["kafka"]), str(found["postgres"]), inputs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Home()


def _without_secrets(conninfo: str) -> str:
    if not conninfo:
        return ""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        return ""  # without the extra nothing connects there
    try:
        return make_conninfo("", **{k: v for k, v in conninfo_to_dict(conninfo).items() if k not in _SECRETS})
    except psycopg.ProgrammingError:
        return ""  # not understood; connecting says why
