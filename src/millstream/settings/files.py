"""Files that survive crashes and power cuts: replaced whole, and on disk when we say so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path


def replace(
    path: Path, data: bytes, *, mode: int = 0o600, sync: bool = True, before: Callable[[], None] | None = None
) -> None:
    """Put `data` under `path` so that a crash leaves the old content or the new one, never a mixture.

    mode: the file's, whatever the umask says.
    sync: content and name are on disk when this returns. Without it a power cut may leave an empty file.
    before: called when the content is written and not yet in its place; a crash may hurt there.
    Raises OSError, and then the old content stays. A crash may leave `<name>.<number>.tmp` behind, which means nothing.
    """
    # Two threads may write the same file at once; each has its own.
    temporary = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        write_all(fd, data, 0)
        if sync:
            os.fsync(fd)
        if before is not None:
            before()
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    if sync:
        sync_folder(path.parent)


def write_all(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of `data` at `position`; OSError when the disk takes only a part (which then may be there)."""
    written = os.pwrite(fd, data, position)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(rest):
        more = os.pwrite(fd, rest[written:], position + written)
        if more == 0:
            raise OSError(28, "the file system took no more bytes")
        written += more


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed entries of `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
