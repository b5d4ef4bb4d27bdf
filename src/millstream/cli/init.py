"""`millstream init`: a folder with an application that runs, what feeds it, and its test."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the folder to make; it may be there and empty")]

FILES = ("shop.py", "feed.py", "test_shop.py", "README.md")
MAX_SHOWN = 3  # names in a message


@command(example="millstream init shop", shows=())
def init(at: Common, folder: Folder) -> None:
    """Make a folder with a small application of one file, what sends events to it, its test, and what to type next.

    It needs no database. Nothing that is there is changed: a folder that has files is refused.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if there:
            raise MillstreamError(
                f"{folder} is not empty: it has {', '.join(there[:MAX_SHOWN])}{', …' if there[MAX_SHOWN:] else ''}."
                f" Name a folder that is not there yet: millstream init {folder / 'shop'}"
            )
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((files("millstream.cli") / "starter" / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise MillstreamError(f"{folder} cannot be made: {error.strerror}.") from error
    if at.json:
        at.out.document({"folder": str(folder), "files": list(FILES)})
        return
    at.out.text(f"{folder} has {', '.join(FILES)}. Next:\n")
    for line, what in (
        (f"cd {folder}", ""),
        ("millstream run shop.py", "log, PostgreSQL, Spark and a live page; Ctrl-C ends it"),
        ("python feed.py 1000", "in a second terminal: a thousand orders"),
        ("millstream views sales", "what became of them"),
    ):
        at.out.text(f"  {line:<26}{'# ' if what else ''}{what}".rstrip())
