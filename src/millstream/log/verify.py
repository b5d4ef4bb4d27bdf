"""Looking at every byte of a log's segments, for `millstream log verify`. Reads only; the log may be in use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.log import index as indexes
from millstream.log.files import File
from millstream.log.recovery import survey
from millstream.log.segment import Segment
from millstream.protocol.records import OVERHEAD


class Damage(NamedTuple):
    """Something that is not as it was written: `position` is the byte in `file`, `offset` the first one concerned."""

    topic: str
    partition: int
    offset: int
    file: Path
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}: {self.file} byte {self.position}: {self.message}"


def verify(folder: Path, progress: Callable[[Path, int], None] | None = None) -> list[Damage]:
    """Everything that is damaged in the log at `folder`; an empty list when all is well.

    `progress` is called before each segment with its path and size. In a log that is in use the end of each
    partition's last segment is being written, so what seems torn there is not reported.
    """
    live = _in_use(folder)
    found: list[Damage] = []
    for topic in sorted((folder / "topics").iterdir()):
        for partition in sorted((p for p in topic.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name)):
            bases = sorted(int(path.stem) for path in partition.glob("*.log"))
            for i, base in enumerate(bases):
                segment = Segment(partition, base)
                following = bases[i + 1] if i + 1 < len(bases) else None
                if progress is not None:
                    progress(segment.path, segment.path.stat().st_size)
                for position, offset, message in _damage(segment, following, live):
                    found.append(Damage(topic.name, int(partition.name), offset, segment.path, position, message))
    return found


def _in_use(folder: Path) -> bool:
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _damage(segment: Segment, following: int | None, live: bool) -> Iterator[tuple[int, int, str]]:
    try:
        file = File(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        return  # Retention or compaction took it in the meantime.
    size = os.fstat(file.fd).st_size
    end = 0
    offset = segment.base
    waiting: tuple[int, int, str] | None = None
    loaded = indexes.load(segment.index_path.read_bytes()) if segment.index_path.exists() else None
    dense = loaded is not None and not loaded[1].gaps
    for position, head, good in survey(file.fd, 0, size, segment, following, dense=dense):
        end = position + head[1] + OVERHEAD
        if good:
            if waiting is not None:
                yield waiting
                waiting = None
            offset = head[0] + head[6] + 1
        elif waiting is None:
            waiting = (position, offset, "the checksum or the offsets of a batch are wrong")
    if waiting is None and end < size:
        waiting = (end, offset, f"no record batch begins here, {size - end} bytes are left")
    if waiting is not None and not (live and following is None):
        yield waiting
    if following is not None and segment.index_path.exists() and (loaded is None or loaded[1].size != size):
        yield 0, segment.base, f"{segment.index_path.name} is damaged (it will be computed again)"
