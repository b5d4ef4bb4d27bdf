"""The console of an application as a process: `python -m millstream.serve APPFILE [--listen HOST:PORT]`. Started by `run`."""

import argparse
import sys
import threading

from millstream.run.child import Ready, work
from millstream.serve import run
from millstream.serve.description import describe
from millstream.serve.metrics import token
from millstream.settings import MillstreamError, Settings


def main() -> int:
    """Serve the console until asked to end; return the exit code."""
    parser = argparse.ArgumentParser(prog="millstream.serve", description="The console of an application.")
    parser.add_argument("file", help="the application: a file, a module, or either with :variable")
    parser.add_argument("--listen", default="127.0.0.1:0", help="where to listen, loopback only")
    options = parser.parse_args()

    def serve(ready: Ready, stop: threading.Event) -> None:
        settings = Settings.inherited()
        if settings.kafka is None:
            raise MillstreamError("no log is known: give its address in MILLSTREAM_KAFKA.")
        run(
            describe(options.file),
            settings.kafka,
            settings.postgres,
            listen=options.listen,
            ready=ready,
            stop=stop,
            token=token(settings.data),
        )

    return work(serve)


if __name__ == "__main__":
    sys.exit(main())
