"""The console of an application as a process; its argument is where it listens, loopback only.

A second argument, "shared", says that the log is others' too: then only the application's own consumer groups are looked at.
"""

from __future__ import annotations

from millstream.app.process import Call
from millstream.serve import run
from millstream.serve.description import describe
from millstream.serve.metrics import token
from millstream.web.access import FILE


def main(call: Call) -> None:
    """Serve the console until asked to end."""
    listen, *more = call.arguments
    description = describe(call.file)
    run(
        description,
        call.settings.log,
        call.settings.postgres,
        listen=listen,
        ready=call.ready,
        stop=call.stop,
        token=token(call.settings.data),
        sessions=call.settings.data / FILE,
        origins=call.settings.console_origins,
        groups=description["groups"] if "shared" in more else None,
    )
