"""The deliveries of an application as a process: from the candidates that Spark leaves to each sink, once."""

from __future__ import annotations

from millstream.app import load
from millstream.app.graph import graph
from millstream.app.process import Call
from millstream.deliver.alerts import run


def main(call: Call) -> None:
    """Deliver until asked to end."""
    app = load(call.file)
    run(app.name, graph(app, call.settings).deliveries, call.settings.log, ready=call.ready, stop=call.stop)
