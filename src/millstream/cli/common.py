"""What all commands share: the options for addresses, `--json`, where things are found, and how a command is declared.

    @command(example="millstream tail departures --from earliest")
    def tail(at: Common, topic: Annotated[str, typer.Argument(...)], ...) -> None:
        ...

`at` is made from the shared options, which the decorator adds to the command's own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from millstream.settings import Kafka, MillstreamError, Settings

if TYPE_CHECKING:
    from millstream.cli.output import Output

DEFAULT_KAFKA = "127.0.0.1:9092"  # where `millstream broker` listens unless told otherwise
ANSWER_S = 5.0  # how long a command waits for a log that does not answer

_PANEL = "Where things are"
_ADDRESSES = {
    "kafka": ("HOST:PORT", "the log; default: the one that runs in the data folder"),
    "postgres": ("CONNINFO", "the PostgreSQL of the views; default: the one that runs in the data folder"),
    "spark": ("MASTER", "the Spark master; default: Spark on this machine"),
    "data": ("DIR", "the data folder; default: .millstream"),
}
_JSON = Annotated[bool, typer.Option("--json", help="print JSON for programs instead of text for people")]


class Root(TyperGroup):
    """Lists commands in the order in which they were added, which is the order in which one meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


@dataclass
class Common:
    """What a command was given beside its own arguments."""

    settings: Settings
    json: bool = False
    _log: Kafka | None = field(default=None, repr=False)
    _running: dict[str, str | None] | None = field(default=None, repr=False)

    @property
    def out(self) -> Output:
        """Where the command prints."""
        from millstream.cli.output import Output

        return Output(json=self.json)

    @property
    def kafka(self) -> Kafka:
        """The log: the one given, or the embedded one that runs in the data folder, or where `millstream broker` listens."""
        return self.settings.kafka or Kafka(self._here("kafka") or DEFAULT_KAFKA)

    @property
    def log(self) -> Kafka:
        """The same, once it answers. Raises MillstreamError when it does not within ANSWER_S: a person is waiting."""
        if self._log is None:
            from millstream.client.wait import wait_for_kafka

            kafka = self.kafka
            wait_for_kafka(kafka, ANSWER_S)
            self._log = kafka
        return self._log

    @property
    def postgres(self) -> str:
        """The connection string of the views' database: the one given, or the embedded one that runs.

        Raises MillstreamError when there is neither.
        """
        if found := self.settings.postgres or self._here("postgres"):
            return found
        raise MillstreamError(
            f"no PostgreSQL is known: nothing runs in {self.settings.data}."
            " Start an application with `millstream run`, or give --postgres or --data."
        )

    def _here(self, what: str) -> str | None:
        if self._running is None:
            from millstream.run.runfile import current

            running = current(self.settings.data)
            self._running = dict(running.addresses) if running else {}
        return self._running.get(what)


@dataclass(frozen=True)
class Command:
    """A declared command. `function` takes the options as the command line has them."""

    name: str
    function: Callable[..., None]
    help: str
    example: str

    def register(self, app: typer.Typer) -> None:
        """Add the command to a command line."""
        app.command(self.name, help=self.help, epilog=f"Example: [bold]{self.example}[/]")(self.function)


def command(*, example: str, shows: Sequence[str] = tuple(_ADDRESSES)) -> Callable[[Callable[..., None]], Command]:
    """Declare a command. `example` is shown in its help, and those addresses that it `shows`; it takes them all."""

    def declare(function: Callable[..., None]) -> Command:
        @functools.wraps(function)
        def called(**given: Any) -> None:
            flags = {name: given.pop(name) for name in _ADDRESSES}
            function(Common(Settings.load(flags), given.pop("as_json")), **given)

        own = [p for name, p in inspect.signature(function, eval_str=True).parameters.items() if name != "at"]
        shared = [_parameter(name, _address(name, hidden=name not in shows), None) for name in _ADDRESSES]
        parameters = [*(p.replace(kind=p.KEYWORD_ONLY) for p in own), *shared, _parameter("as_json", _JSON, False)]
        # Typer reads the signature; the wrapper shows it the command's own parameters and the shared ones.
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        del called.__wrapped__  # type: ignore[attr-defined]
        return Command(function.__name__, called, inspect.cleandoc(function.__doc__ or ""), example)

    return declare


def _address(name: str, *, hidden: bool) -> Any:
    metavar, text = _ADDRESSES[name]
    return Annotated[
        str | None, typer.Option(f"--{name}", metavar=metavar, help=text, rich_help_panel=_PANEL, hidden=hidden)
    ]


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
