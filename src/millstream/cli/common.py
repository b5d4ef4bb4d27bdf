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
from typer.core import TyperGroup, TyperOption

from millstream.settings import Kafka, MillstreamError, Settings

if TYPE_CHECKING:
    from millstream.cli.output import Output
    from millstream.run.home import Home

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


class Default(TyperGroup):
    """Commands under one name, of which `list` and `show` need not be said: `groups` lists, `groups NAME` shows.

    A thing that is named as a command is shown by `groups show NAME`. Options may stand before the command's name.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in their order."""
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command that is meant in front."""
        return super().parse_args(ctx, self._named(args))

    def _named(self, args: list[str]) -> list[str]:
        options = [p for c in self.commands.values() for p in c.params if isinstance(p, TyperOption) and not p.is_flag]
        valued = {word for option in options for word in option.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] not in ("-h", "--help", "--"):
            place += 2 if args[place] in valued else 1
        word = args[place] if place < len(args) else None
        if word is not None and word in self.commands:
            return [word, *args[:place], *args[place + 1 :]]
        if word is not None and word in ("-h", "--help"):
            return [word]
        return ["list" if word is None else "show", *args]


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
        """The log: the one given, the data folder's (running there, or used by its last run), or `millstream broker`'s."""
        return self.settings.kafka or Kafka(self._here("kafka") or self.home.kafka or DEFAULT_KAFKA)

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
        if found := self.settings.postgres or self._here("postgres") or self.home.postgres:
            return found
        raise MillstreamError(
            f"no PostgreSQL is known: nothing runs in {self.settings.data}."
            " Start an application with `millstream run`, or give --postgres or --data."
        )

    @property
    def home(self) -> Home:
        """What the data folder knows of the application that ran there last."""
        from millstream.run.home import recall

        return recall(self.settings.data)

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


@dataclass(frozen=True)
class Commands:
    """Commands under one name; one is called `list`, one `show`."""

    name: str
    help: str
    commands: tuple[Command, ...]

    def register(self, app: typer.Typer) -> None:
        """Add the commands to a command line."""
        example = f"Example: [bold]{self.commands[0].example}[/]"
        family = typer.Typer(
            cls=Default, help=self.help, epilog=example, no_args_is_help=False, rich_markup_mode="rich"
        )
        for one in self.commands:
            one.register(family)
        app.add_typer(family, name=self.name)


def command(
    *, example: str, shows: Sequence[str] = tuple(_ADDRESSES), name: str | None = None
) -> Callable[[Callable[..., None]], Command]:
    """Declare a command. `example` is shown in its help, and those addresses that it `shows`; it takes them all.

    name: when the function's own would hide a builtin.
    """

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
        return Command(name or function.__name__, called, inspect.cleandoc(function.__doc__ or ""), example)

    return declare


def _address(name: str, *, hidden: bool) -> Any:
    metavar, text = _ADDRESSES[name]
    return Annotated[
        str | None, typer.Option(f"--{name}", metavar=metavar, help=text, rich_help_panel=_PANEL, hidden=hidden)
    ]


def _parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
