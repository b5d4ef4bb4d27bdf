"""The disk that forgets (disk.c), from Python: built, preloaded, cut, and filled again.

A cut leaves what was synced. Of the rest it may leave anything: `cut` with a chance keeps some of it, so that what was
written later may be there while what was written earlier is not.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from random import Random

SOURCE = Path(__file__).with_name("disk.c")


class Disk:
    """Notes of what is durable in a folder tree, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.library = folder / "disk.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self.library, SOURCE, "-ldl"], check=True)
        os.environ["FORGETFUL"] = str(self.notes)
        self._here = ctypes.CDLL(str(self.library))

    @property
    def environment(self) -> dict[str, str]:
        """What a process whose disk forgets is started with."""
        return {**os.environ, "LD_PRELOAD": str(self.library), "FORGETFUL": str(self.notes)}

    def keep(self, root: Path) -> None:
        """Everything in the tree is durable now."""
        for entry in self.notes.iterdir():
            entry.unlink()
        for path in [root, *root.rglob("*")]:
            self._sync(path)

    def _sync(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            assert self._here.fsync(fd) == 0, path
        finally:
            os.close(fd)

    def fail(self, yes: bool) -> None:
        """Have every sync fail, or no longer."""
        if yes:
            (self.notes / "eio").touch()
        else:
            (self.notes / "eio").unlink()

    def cut(self, root: Path, target: Path, chance: Random | None = None) -> Path:
        """Build in `target` what a cut leaves of the tree `root`, which is durable from then on; returns `target`.

        With a `chance` some of what was not synced is left as well.
        """
        there = {} if chance is None else {self.key(p): p for p in [root, *root.rglob("*")]}
        self._build(self.key(root), target, chance, there)
        self.keep(target)
        return target

    def _build(self, key: str, target: Path, chance: Random | None, there: dict[str, Path]) -> None:
        target.mkdir()
        note = self.notes / f"dir.{key}"
        entries = [line.split(" ", 2) for line in note.read_text().splitlines()] if note.exists() else []
        if chance is not None and key in there and chance.random() < 0.5:
            # Files that came, went or changed their names since. Folders are left as they were.
            entries = [entry for entry in entries if entry[0] == "dir"]
            entries += [["file", self.key(p), p.name] for p in there[key].iterdir() if p.is_file()]
        for kind, other, name in entries:
            if kind == "dir":
                self._build(other, target / name, chance, there)
            else:
                content = self.notes / f"file.{other}"
                synced = content.read_bytes() if content.exists() else b""
                (target / name).write_bytes(synced if chance is None else self._some(synced, there.get(other), chance))

    def _some(self, synced: bytes, path: Path | None, chance: Random) -> bytes:
        """What was synced of a file, and some of what was appended since, perhaps with zeros for what did not get there."""
        written = path.read_bytes() if path is not None else b""
        if not written.startswith(synced):
            return synced
        upto = chance.choice([len(synced), len(written), chance.randint(len(synced), len(written))])
        return written[:upto] + bytes(chance.choice([0, 0, len(written) - upto]))

    def key(self, path: Path) -> str:
        """The key of a file or folder."""
        out = ctypes.create_string_buffer(128)
        assert self._here.key_of(bytes(path), out) == 0, path
        return out.value.decode()
