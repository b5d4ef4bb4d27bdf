"""Opening a partition's folder after whatever happened: what is trusted, what is scanned, what is cut.

After a clean shutdown nothing is scanned: indexes, snapshot and checkpoint say everything. Otherwise:

1. A compaction that was decided (`compaction.json`) is finished, one that was not is undone; temporary files go.
2. Closed segments before the checkpoint's `flushed` offset are trusted when their index file is whole. The others,
   and the last segment from the last synced index on, are read and every checksum is compared.
3. Damage that nothing whole follows is the torn end of an interrupted write: it is cut. Damage in the middle stays
   where it is, so that what follows it is not lost; reads of it fail, and only those.
4. Producer state comes from the newest snapshot that fits and the headers of the batches after it.

`notes` says in words what was found and cut.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from millstream.log import archive, swap
from millstream.log import checkpoint as checkpoints
from millstream.log import index as indexes
from millstream.log import producers as states
from millstream.log.checkpoint import Checkpoint
from millstream.log.errors import CorruptMessage
from millstream.log.files import File, read_into, remove_leftovers
from millstream.log.head import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Head,
)
from millstream.log.index import Index
from millstream.log.producers import Producers, Sent
from millstream.log.scan import Source, heads, survey
from millstream.log.segment import Segment, file_name
from millstream.protocol.records import (
    CONTROL,
    MAX_SEQUENCE,
    OVERHEAD,
    TRANSACTIONAL,
    RecordsError,
    marker,
)

_SEGMENT: Final = re.compile(r"(\d{20})\.(log|index|snapshot)")


class Recovered:
    """What was found in a partition's folder: segments in order (the last one is active), producers, offsets, notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: list[Segment] = []
        self.producers = Producers()
        self.checkpoint = Checkpoint()
        self.snapshots: set[int] = set()
        self.remote: dict[int, archive.Entry] = {}
        self.notes: list[str] = []


def recover(folder: Path, *, clean: bool, now: int, archived: str = "") -> Recovered:
    """Open a partition's folder; it is whole and ready to be appended to afterwards.

    `clean` says that the last shutdown was; `now` is epoch ms; `archived` is where the partition's archive is now.
    OSError when the disk fails.
    """
    found = Recovered(folder)
    note = found.notes.append
    found.notes += swap.finish(folder) + remove_leftovers(folder)
    bases: list[int] = []
    indexed: set[int] = set()
    for entry in sorted(os.listdir(folder)):
        match = _SEGMENT.fullmatch(entry)
        if match is None:
            continue
        if match[2] == "log":
            bases.append(int(match[1]))
        elif match[2] == "index":
            indexed.add(int(match[1]))
        else:
            found.snapshots.add(int(match[1]))
    noted = archive.read(folder) or _noted_again(folder, indexed - set(bases), archived, found)
    found.remote = {entry.base: entry for entry in noted.segments}
    first = bases[0] if bases else None
    away = [entry for entry in noted.segments if first is None or entry.base < first]
    if not os.path.exists(folder / f"{archive.NAME}.damaged"):  # They may be all that tells what is in the archive.
        for base in indexed - set(bases) - set(found.remote):
            os.unlink(folder / file_name(base, "index"))

    known = checkpoints.read(folder)
    if known is None:
        clean = False
        if bases:
            note(
                f"{folder / checkpoints.NAME}: missing or damaged; everything is scanned, reading starts at the first segment"
            )
        known = Checkpoint()
    if not bases:
        base = max(known.start, known.end, known.flushed, *(entry.end for entry in away))
        if base:
            note(f"{folder}: all segments are gone; it continues at offset {base}")
        segment = Segment(folder, base, now)
        segment.file = File(segment.path, os.O_RDWR | os.O_CREAT)
        bases = [base]
    for remote in away:
        segment = Segment(folder, remote.base, now)
        segment.learn(remote.facts)
        segment.index_saved = True
        segment.local, segment.remote = False, remote
        found.segments.append(segment)
    for base in bases:
        segment = Segment(folder, base, now)
        segment.remote = found.remote.get(base)
        written = segment.path.stat()
        if written.st_size:
            segment.created_ms = min(now, int(written.st_mtime * 1000))
        found.segments.append(segment)
    for segment, following in zip(found.segments[len(away) :], found.segments[len(away) + 1 :], strict=False):
        _closed(segment, following.base, known, clean, found)
    _active(found.segments[-1], known, clean, found)

    end = found.segments[-1].end_offset
    start = min(max(known.start, found.segments[0].base), end)
    found.checkpoint = Checkpoint(start, min(known.flushed, end), max(start, min(known.cleaned, end)))
    found.checkpoint = msgspec.structs.replace(
        found.checkpoint, dropped=known.dropped, dropped_bytes=known.dropped_bytes
    )
    _producers(found, start, end, now)
    return found


def _noted_again(folder: Path, alone: set[int], url: str, found: Recovered) -> archive.Manifest:
    """What the damaged note of the archive has said, as far as indexes without a segment tell."""
    noted = archive.Manifest(archive.from_indexes(folder, alone, url) if url else [])
    path = folder / archive.NAME
    aside = path.with_name(f"{archive.NAME}.damaged")
    if noted.segments:
        aside.unlink(missing_ok=True)
        os.link(path, aside)
        archive.write(folder, noted.segments)
        found.notes.append(f"{path}: damaged, made again for {len(noted.segments)} segments from their indexes")
    else:
        os.rename(path, aside)
        found.notes.append(f"{path}: damaged, put aside; what is only in the archive cannot be read")
    return noted


def _closed(segment: Segment, next_base: int, known: Checkpoint, clean: bool, found: Recovered) -> None:
    size = segment.path.stat().st_size
    if clean or next_base <= known.flushed:
        facts = _facts(segment, size, whole=not clean)
        if facts is not None and segment.base <= facts.end_offset <= next_base:
            segment.learn(facts)
            segment.index_saved = True
            return
        found.notes.append(f"{segment.index_path}: missing or damaged, computed again from the segment")
    segment.file = File(segment.path, os.O_RDWR)
    segment.index = Index()
    _survey(segment, 0, size, next_base, found)
    segment.aborted = -1


def _active(segment: Segment, known: Checkpoint, clean: bool, found: Recovered) -> None:
    segment.file = segment.file or File(segment.path, os.O_RDWR)
    size = os.fstat(segment.file.fd).st_size
    loaded = None
    with contextlib.suppress(FileNotFoundError):
        loaded = indexes.load(segment.index_path.read_bytes())
    if loaded is not None:
        facts = loaded[1]
        if clean and (facts.size, facts.end_offset) != (size, known.end):
            clean = False
        # Without a clean shutdown only what was synced before the index was written is known to be on disk.
        if facts.size <= size and (clean or facts.end_offset <= known.flushed):
            segment.index = loaded[0]
            segment.learn(facts)
    if segment.index is None:
        segment.index = Index()
        if size and clean:
            found.notes.append(f"{segment.index_path}: missing or damaged, computed again from the segment")
    elif segment.size == size:
        segment.trusted_from = size
        return
    begin = segment.size
    _survey(segment, begin, size, None, found)
    segment.aborted = -1 if segment.size > begin else segment.aborted
    # What the survey has read is as good as what this process writes, unless it left damage in place.
    segment.trusted_from = segment.size


def _facts(segment: Segment, size: int, *, whole: bool) -> indexes.Facts | None:
    try:
        with open(segment.index_path, "rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            data = file.read(indexes.HEADER_SIZE)
            if whole or data[:6] != indexes.MAGIC + indexes.VERSION.to_bytes(2):  # of which the header has its checksum
                data += file.read()
    except OSError:
        return None
    facts = indexes.load_facts(data, file_size)
    if facts is None or facts.size != size:
        return None
    if whole and indexes.load(data) is None:
        return None
    return facts


def _survey(segment: Segment, begin: int, size: int, next_base: int | None, found: Recovered) -> None:
    """Read the batches from `begin` on into facts and index; cut the torn end, leave other damage in place."""
    assert segment.file is not None and segment.index is not None
    kept = begin
    damaged: list[int] = []
    whole = next_base is not None
    tail = ""
    source = partial(read_into, segment.file.fd)
    for position, head, good in survey(source, begin, size, segment.base, segment.end_offset, next_base):
        if not good:
            damaged.append(position)
            continue
        if head[BASE_OFFSET] != segment.end_offset:
            segment.gaps = True
        segment.note(
            head[BASE_OFFSET],
            head[BASE_OFFSET] + head[LAST_DELTA],
            head[MAX_TIMESTAMP],
            position,
            head[LENGTH] + OVERHEAD,
            4096,
            _first_timestamp(head),
        )
        segment.index.sum_up(head[BASE_OFFSET])
        kept = position + head[LENGTH] + OVERHEAD
        for place in damaged:
            segment.gaps = True
            whole = False
            found.notes.append(
                f"{segment.name}: the batch at byte {place} is damaged, whole ones follow it: left in place, reads of "
                f"it fail"
            )
        damaged.clear()
    if kept < size:
        tail = f"{segment.name}: cut {size - kept} bytes behind offset {segment.end_offset} (byte {kept}): "
        tail += "the end of an interrupted write"
        os.ftruncate(segment.file.fd, kept)
        os.fsync(segment.file.fd)
        found.notes.append(tail)
    segment.size = kept
    if not whole:
        del segment.index.sums[:]  # Of damage that was left, or of a segment that grows, there are none.


def _first_timestamp(head: Head) -> int:
    return head[MAX_TIMESTAMP] if head[ATTRIBUTES] & 0x48 else head[BASE_TIMESTAMP]


def _producers(found: Recovered, start: int, end: int, now: int) -> None:
    # Segments whose aborted transactions have to be found again need the state as of their beginning.
    unknown = [s for s in found.segments if s.aborted < 0]
    wanted = min((s.base for s in unknown), default=end)
    offset = next(s.base for s in found.segments if s.local)
    for candidate in sorted(found.snapshots, reverse=True):
        if candidate > end:
            (found.folder / file_name(candidate, "snapshot")).unlink(missing_ok=True)
            found.snapshots.discard(candidate)
            continue
        if candidate > wanted:
            continue
        loaded = read_snapshot(found.folder, candidate)
        if loaded is not None:
            found.producers.fill(loaded)
            offset = candidate
            break
        found.notes.append(f"{found.folder / file_name(candidate, 'snapshot')}: damaged, computed again")
        (found.folder / file_name(candidate, "snapshot")).unlink(missing_ok=True)
        found.snapshots.discard(candidate)
    for segment in found.segments:
        collect = segment.aborted < 0
        if collect:
            segment.aborted = 0
            assert segment.index is not None
            segment.index.aborted.clear()
        if segment.end_offset > offset and segment.local:
            file = segment.file or File(segment.path, os.O_RDONLY)
            replay(file, segment, offset, found.producers, segment.index if collect else None, now)
        if collect:
            assert segment.index is not None
            segment.aborted = len(segment.index.aborted)


def index_of(source: Source, segment: Segment) -> Index:
    """The index of a closed segment from its whole batches, without aborted transactions."""
    index = Index()
    newest, whole = -1, True
    walk = survey(source, 0, segment.size, segment.base, segment.base, segment.end_offset, dense=not segment.gaps)
    for position, head, good in walk:
        if good:
            if not index.offsets or position >= (index.offsets[-1] & 0xFFFF_FFFF) + 4096:
                index.add(head[BASE_OFFSET] - segment.base, position, newest)
            newest = max(newest, head[MAX_TIMESTAMP])
            index.sum_up(head[BASE_OFFSET])
        whole = whole and good
    if not whole:
        del index.sums[:]
    return index


def read_snapshot(folder: Path, offset: int) -> dict[int, states.Producer] | None:
    """The producers' states in the snapshot file of `offset`; None when it is missing or damaged."""
    try:
        loaded = states.load((folder / file_name(offset, "snapshot")).read_bytes())
    except OSError:
        return None
    return loaded[1] if loaded is not None and loaded[0] == offset else None


def replay(file: File, segment: Segment, offset: int, producers: Producers, collect: Index | None, now: int) -> None:
    """Bring `producers` from `offset` to the segment's end; aborted transactions go into `collect`.

    What the log holds was accepted once, so nothing is refused here; damage ends the walk.
    """
    try:
        for position, head in heads(file.fd, 0, segment.size, segment.name):
            if head[PRODUCER_ID] >= 0 and head[BASE_OFFSET] + head[LAST_DELTA] >= offset:
                aborted = apply(producers, head, lambda p=position, h=head: _read(file, p, h), now)  # type: ignore[misc]
                if aborted is not None and collect is not None:
                    collect.aborted.append(aborted)
    except (CorruptMessage, RecordsError):
        return


def _read(file: File, position: int, head: Head) -> bytes:
    return os.pread(file.fd, head[LENGTH] + OVERHEAD, position)


def apply(producers: Producers, head: Head, content: Callable[[], bytes], now: int) -> indexes.Aborted | None:
    """Count a stored batch of an idempotent producer in; the aborted transaction that it ended, if it did."""
    producer_id, epoch = head[PRODUCER_ID], head[PRODUCER_EPOCH]
    state = producers.get(producer_id)
    if head[ATTRIBUTES] & CONTROL:
        said = marker(content())
        if said is None:
            return None
        after = states.Producer(
            epoch,
            said.coordinator_epoch,
            head[MAX_TIMESTAMP],
            now,
            -1,
            state.batches if epoch == state.epoch else (),
        )
        return producers.end(producer_id, after, said.commit, head[BASE_OFFSET])
    last = head[BASE_OFFSET] + head[LAST_DELTA]
    batch = Sent(
        head[BASE_SEQUENCE],
        (head[BASE_SEQUENCE] + head[LAST_DELTA]) & MAX_SEQUENCE,
        head[BASE_OFFSET],
        last,
        head[MAX_TIMESTAMP],
    )
    begun = state.transaction_start
    if begun < 0 and head[ATTRIBUTES] & TRANSACTIONAL:
        begun = head[BASE_OFFSET]
    kept = state.batches if epoch == state.epoch else ()
    producers.put(
        producer_id,
        states.Producer(
            epoch, state.coordinator_epoch, head[MAX_TIMESTAMP], now, begun, (*kept[1 - states.REMEMBERED :], batch)
        ),
    )
    return None


def remove_segment_files(segment: Segment) -> None:
    """Unlink the files of a segment, the log first: what remains after a crash is recognised as left over."""
    segment.path.unlink(missing_ok=True)
    for suffix in (".index", ".snapshot"):
        segment.path.with_suffix(suffix).unlink(missing_ok=True)
