"""The disk that forgets (disk.c), from Python: built, preloaded, cut, and filled again."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

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

    def after_cut(self, key: str, target: Path) -> None:
        """Build in `target` what a cut leaves of the folder whose note is `key`."""
        target.mkdir()
        note = self.notes / f"dir.{key}"
        for line in note.read_text().splitlines() if note.exists() else ():
            kind, other, name = line.split(" ", 2)
            if kind == "dir":
                self.after_cut(other, target / name)
            else:
                content = self.notes / f"file.{other}"
                (target / name).write_bytes(content.read_bytes() if content.exists() else b"")

    def key(self, root: Path) -> str:
        """The key of a folder that has been kept."""
        probe = self.notes.parent / "probe"
        probe.mkdir(exist_ok=True)
        os.environ["FORGETFUL"] = str(probe)
        try:
            self._sync(root)
            (found,) = probe.iterdir()
            found.unlink()
            return found.name.removeprefix("dir.")
        finally:
            os.environ["FORGETFUL"] = str(self.notes)
