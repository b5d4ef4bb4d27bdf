"""The command line: `millstream COMMAND`. One module per command; this one finds them, and turns errors into plain words.

A command is a function in the module of its name, made with `common.command`. The modules import nothing heavy at their top.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

# In the order in which the help lists them.
COMMANDS = (
    "demo", "init", "run", "plan", "console", "doctor", "broker", "topics", "produce", "tail", "groups", "queries", "views",
    "capture", "log",
)  # fmt: skip

DEBUG = "MILLSTREAM_DEBUG"  # set to 1 (or give --debug): tracebacks of errors, for bug reports
_INTERRUPTED = 130  # what a shell reports for Ctrl-C: 128 + SIGINT


def application() -> typer.Typer:
    """Return the whole command line."""
    import typer

    from millstream.cli.common import Root

    app = typer.Typer(
        cls=Root,
        name="millstream",
        help="Streaming data for Python: a log that speaks Kafka's protocol, capture, Spark, views and alerts.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", help="print the version and end", is_eager=True, callback=_version
        ),
    ) -> None:
        pass

    for name in COMMANDS:
        getattr(import_module(f"millstream.cli.{name}"), name).register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 with one message on stderr, 2 for a wrong usage, 130 after Ctrl-C."""
    from millstream.settings import MillstreamError, redact

    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get(DEBUG, "") not in ("", "0")
    if given and given[0] == "--debug":
        debug, given = True, given[1:]
    if debug:
        os.environ[DEBUG] = "1"  # for child processes
    try:
        if given[:1] == ["broker"]:
            # The broker has arguments, help and errors of its own, and must not pay for ours.
            from millstream.broker import main as broker

            sys.exit(broker(given[1:]))
        application()(given, prog_name="millstream")
    except MillstreamError as error:
        if debug:
            raise
        sys.stdout.flush()
        print(f"error: {redact(str(error))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        if debug:
            raise
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        _quiet_pipe()
        sys.exit(1)
    finally:
        with contextlib.suppress(BrokenPipeError):
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                _quiet_pipe()


def _quiet_pipe() -> None:
    """Point stdout elsewhere, so that Python's own flush at the end has nobody to complain to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        import typer

        from millstream import __version__

        print(f"millstream {__version__}")
        raise typer.Exit
