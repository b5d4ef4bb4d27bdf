"""Looking at every byte of a log's segments, for `millstream log verify`. Reads only; the log may be in use.

Archived segments are read where they are, a few megabytes at a time: nothing is kept of them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from millstream.log import archive, checkpoint
from millstream.log import index as indexes
from millstream.log.archive import Entry
from millstream.log.errors import ArchiveError, CorruptMessage
from millstream.log.files import File, read_into
from millstream.log.head import BASE_OFFSET, LAST_DELTA, LENGTH
from millstream.log.index import Index
from millstream.log.reading import check_offsets
from millstream.log.scan import Source, survey
from millstream.log.segment import Segment, file_name
from millstream.protocol.records import OVERHEAD

ARCHIVE_CHUNK: Final = 8 * 1024 * 1024
"""Bytes of an archived segment in memory: every request to a store has its delay."""

Place = tuple[int, int, str]
"""Position, offset and message of some damage."""
Found = tuple[Path | str, Place]
"""The file or address, and the damage in it."""


class Damage(NamedTuple):
    """Something that is not as it was written: `position` is the byte in `file`, `offset` the first one concerned.

    `file` is an address when it is in an archive.
    """

    topic: str
    partition: int
    offset: int
    file: Path | str
    position: int
    message: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}: {self.file} byte {self.position}: {self.message}"


def verify(
    folder: Path, progress: Callable[[Path | str, int], None] | None = None, *, archived: bool = True
) -> list[Damage]:
    """Everything that is damaged in the log at `folder`; an empty list when all is well.

    `progress` is called before each segment with its path (or address) and size. In a log that is in use the end of
    each partition's last segment is being written, so what seems torn there is not reported. Without `archived` what
    is in archives is not looked at.
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
                found += [_named(partition, each) for each in _damage(segment, following, live)]
            if archived:
                found += [_named(partition, each) for each in _archived(partition, progress)]
    return found


def _named(partition: Path, damage: Found) -> Damage:
    file, (position, offset, message) = damage
    return Damage(partition.parent.name, int(partition.name), offset, file, position, message)


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


def _damage(segment: Segment, following: int | None, live: bool) -> Iterator[Found]:
    try:
        file = File(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        return  # Retention or compaction took it in the meantime.
    size = os.fstat(file.fd).st_size
    loaded = indexes.load(segment.index_path.read_bytes()) if segment.index_path.exists() else None
    dense = loaded is not None and not loaded[1].gaps
    # Damage that continues to the end of a segment that is being written is the end of a write.
    growing = live and following is None
    segment.size = size
    sound = True
    for place in _walk(partial(read_into, file.fd), size, segment.base, following, dense, growing):
        sound = False
        yield segment.path, place
    if sound and loaded is not None and loaded[1].size == size:
        for place in _offsets(segment, file, loaded[0]):
            yield segment.path, place
    if following is not None and segment.index_path.exists() and (loaded is None or loaded[1].size != size):
        yield segment.index_path, (0, segment.base, "the index is damaged (it will be computed again)")


def _offsets(segment: Segment, file: File, index: Index) -> Iterator[Place]:
    # Where compaction took records a wrong offset shows in the index's sums only.
    for entry in range(len(index.sums)):
        position = index.offsets[entry] & 0xFFFF_FFFF
        try:
            check_offsets(segment, file, index, position)
        except CorruptMessage:
            yield position, segment.base + (index.offsets[entry] >> 32), "the offset of a batch is wrong"


def _walk(
    source: Source, size: int, base: int, following: int | None, dense: bool, growing: bool, **options: int
) -> Iterator[Place]:
    end = 0
    offset = base
    waiting: Place | None = None
    for position, head, good in survey(source, 0, size, base, base, following, dense=dense, **options):
        end = position + head[LENGTH] + OVERHEAD
        if good:
            if waiting is not None:
                yield waiting
                waiting = None
            offset = head[BASE_OFFSET] + head[LAST_DELTA] + 1
        elif waiting is None:
            waiting = (position, offset, "the checksum or the offsets of a batch are wrong")
    if waiting is None and end < size:
        waiting = (end, offset, f"no record batch begins here, {size - end} bytes are left")
    if waiting is not None and not growing:
        yield waiting


def _archived(partition: Path, progress: Callable[[Path | str, int], None] | None) -> Iterator[Found]:
    """Damage in what a partition has in an archive, and where it is."""
    noted = archive.read(partition)
    if noted is None:
        path = partition / archive.NAME
        yield path, (0, 0, "the note of what is archived is damaged (it will be made again from the indexes)")
        return
    for entry in noted.segments:
        address = archive.object_url(entry)
        if progress is not None:
            progress(address, entry.size)
        found: list[Found] = []
        try:
            found += [(address, place) for place in _archived_log(entry)]
            found += _archived_index(partition, entry)
        except ArchiveError as error:
            found.append((address, (0, entry.base, f"cannot be checked: {error}")))
        if found and not _gone(partition, entry):
            yield from found


def _archived_log(entry: Entry) -> Iterator[Place]:
    size = archive.object_size(entry)
    if size is None:
        yield 0, entry.base, "the segment is not in the archive"
    elif size != entry.size:
        yield min(size, entry.size), entry.base, f"the segment has {size} bytes in the archive, {entry.size} are noted"
    else:
        source = archive.source(entry)
        yield from _walk(source, size, entry.base, entry.end, not entry.gaps, False, chunk=ARCHIVE_CHUNK)


def _archived_index(partition: Path, entry: Entry) -> Iterator[Found]:
    here = partition / file_name(entry.base, "index")
    loaded = indexes.load(here.read_bytes()) if here.exists() else None
    away = archive.fetch_index(entry) is not None
    if loaded is None or loaded[1] != entry.facts:
        again = "fetched again" if away else "lost in the archive, too" if entry.aborted else "computed again"
        yield here, (0, entry.base, f"the index of an archived segment is missing or damaged (it will be {again})")
    if not away:
        file = f"{entry.url}/{file_name(entry.base, 'index')}"
        yield file, (0, entry.base, "the index in the archive is missing or damaged (the one here serves)")


def _gone(partition: Path, entry: Entry) -> bool:
    """Whether retention has taken the segment, in the meantime or before a crash: it leaves the archive, then the note."""
    noted = archive.read(partition)
    if noted is not None and entry not in noted.segments:
        return True
    known = checkpoint.read(partition)
    return known is not None and entry.end <= known.start
