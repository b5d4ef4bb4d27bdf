"""`millstream log`: looking after the folder of a log, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

if TYPE_CHECKING:
    from millstream.log import Damage

Words = Annotated[list[str], typer.Argument(metavar="verify FOLDER", help="look at every byte of the log in a folder")]


Archives = Annotated[bool, typer.Option("--archives/--no-archives", help="look at what is in archives, too")]


@command(example="millstream log verify .millstream/log", shows=())
def log(at: Common, words: Words, archives: Archives = True) -> None:
    """Say what is damaged in the files of a log, which may be in use, and in its archives. Ends with 1 when something is."""
    match words:
        case ["verify", folder]:
            _verify(at, Path(folder), archives)
        case other:
            raise MillstreamError(f"expected `verify FOLDER`, got {' '.join(other)!r}.")


def _verify(at: Common, folder: Path, archives: bool) -> None:
    from millstream.log import verify

    if not (folder / "topics").is_dir():
        raise MillstreamError(f"{folder} is no folder of a log: expected topics/ in it. The broker's --data is one.")
    segments = size = 0

    def progress(_: Path | str, more: int) -> None:
        nonlocal segments, size
        segments += 1
        size += more

    found = verify(folder, progress, archived=archives)
    if at.json:
        at.out.document({"segments": segments, "bytes": size, "damage": [_facts(each) for each in found]})
    else:
        for each in found:
            at.out.text(str(each))
        result = f"{len(found)} damaged places" if found else "all is whole"
        at.out.text(f"{segments:,} segments, {size:,} bytes: {result}.")
    if found:
        raise typer.Exit(1)


def _facts(damage: Damage) -> dict[str, object]:
    return {
        "topic": damage.topic,
        "partition": damage.partition,
        "offset": damage.offset,
        "file": str(damage.file),
        "position": damage.position,
        "message": damage.message,
    }
