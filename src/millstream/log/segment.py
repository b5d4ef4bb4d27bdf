"""One segment of a partition: its file of record batches, and what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millstream.log import failpoints
from millstream.log import index as indexes
from millstream.log.archive import Entry, object_url
from millstream.log.files import File, replace
from millstream.log.index import Facts, Index
from millstream.log.scan import MAX_SIZE


def file_name(base: int, suffix: str) -> str:
    """The name of a segment's file: its base offset in twenty digits."""
    return f"{base:020d}.{suffix}"


class Segment:
    """The batches from offset `base` to before `end_offset`. Appended to while active, then closed for good.

    `gaps` says that offsets may be missing inside (compaction took them). `trusted_from` is the byte from which this
    process wrote the file itself; what lies before is checked when it is read. `remote` is its entry in the archive;
    a segment that is not `local` is only there.
    """

    __slots__ = (
        "aborted",
        "base",
        "created_ms",
        "end_offset",
        "file",
        "first_timestamp",
        "gaps",
        "index",
        "index_saved",
        "local",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "pinned",
        "rebuild",
        "remote",
        "size",
        "trusted_from",
    )

    def __init__(self, folder: Path, base: int, created_ms: int = 0) -> None:
        self.base = base
        self.path = folder / file_name(base, "log")
        self.size = 0
        self.end_offset = base
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.gaps = False
        self.aborted = 0
        self.created_ms = created_ms
        self.file: File | None = None
        self.index: Index | None = None
        self.index_saved = False
        self.pinned = False
        self.local = True
        self.remote: Entry | None = None
        self.trusted_from = MAX_SIZE
        self.rebuild: Callable[[Segment], Index] | None = None

    @property
    def index_path(self) -> Path:
        """Where the index is kept."""
        return self.path.with_suffix(".index")

    @property
    def name(self) -> str:
        """The file, for messages; where it is in the archive when it is only there."""
        return str(self.path) if self.local or self.remote is None else object_url(self.remote)

    @property
    def facts(self) -> Facts:
        """What the index file says about the segment."""
        return Facts(
            self.size,
            self.end_offset,
            self.first_timestamp,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.gaps,
            self.aborted,
        )

    def learn(self, facts: Facts) -> None:
        """Take over what an index file says."""
        self.size = facts.size
        self.end_offset = facts.end_offset
        self.first_timestamp = facts.first_timestamp
        self.max_timestamp = facts.max_timestamp
        self.max_timestamp_offset = facts.max_timestamp_offset
        self.gaps = facts.gaps
        self.aborted = facts.aborted

    def note(
        self, base: int, last: int, max_timestamp: int, position: int, size: int, interval: int, first_timestamp: int
    ) -> None:
        """Count in a batch that stands at `position` at the end of the file, and index it when one is due."""
        index = self.index
        assert index is not None, "only a segment with its index in memory grows"
        offsets = index.offsets
        if position >= (offsets[-1] & 0xFFFF_FFFF) + interval if offsets else True:
            index.add(base - self.base, position, self.max_timestamp)
        self.size = position + size
        self.end_offset = last + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last
        if self.first_timestamp < 0:
            self.first_timestamp = first_timestamp

    def save_index(self, index: Index) -> None:
        """Write `index`, which is the segment's, to its file."""
        replace(self.index_path, indexes.dump(index, self.facts), point=failpoints.INDEX_WRITTEN, sync=False)
        self.index_saved = True

    def load_index(self) -> Index | None:
        """The index from its file; None when it is missing, damaged or not of this log file."""
        try:
            found = indexes.load(self.index_path.read_bytes())
        except OSError:
            return None
        if found is None or found[1].size != self.size:
            return None
        return found[0]
