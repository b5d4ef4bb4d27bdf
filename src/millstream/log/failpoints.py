"""Places in the log where a crash may hurt."""

from __future__ import annotations

from typing import Final

from millstream.settings.failpoints import reach, tripped

TOPIC_BUILT: Final = "topic folder built under its temporary name"
TOPIC_MOVED: Final = "topic folder moved to its name, folder entry not yet on disk"
TOPIC_WRITTEN: Final = "new topic.json written beside the old one"
TOPIC_DELETED: Final = "topic folder moved away, its files still there"
PARTITIONS_MADE: Final = "folders of new partitions made, topic.json still old"
CHECKPOINT_WRITTEN: Final = "new checkpoint written beside the old one"
PRODUCER_IDS_RESERVED: Final = "a block of producer ids reserved, none handed out"
APPEND_WRITTEN: Final = "batches written, nothing noted in memory"
ROLL_CREATED: Final = "file of a new segment created"
ROLL_DONE: Final = "segment closed, index and snapshot not yet written"
INDEX_WRITTEN: Final = "index written under its temporary name"
SNAPSHOT_WRITTEN: Final = "producer snapshot written under its temporary name"
FLUSH_SYNCED: Final = "log synced, checkpoint still old"
DELETE_BEGUN: Final = "new log start on disk, no segment deleted"
DELETE_ONE: Final = "one segment deleted, others to follow"
CLEAN_WRITTEN: Final = "compacted segment written and synced, not yet decided"
CLEAN_DECIDED: Final = "swap decided on disk, nothing swapped"
CLEAN_RENAMED: Final = "compacted segment in place, replaced ones still there"
CLEAN_REMOVED: Final = "one replaced segment removed"
CLEAN_SWAPPED: Final = "replaced segments gone, decision still there"
ARCHIVE_COPIED_LOG: Final = "segment copied to the archive, its index not"
ARCHIVE_COPIED: Final = "segment and index copied to the archive, not noted"
ARCHIVE_NOTE_WRITTEN: Final = "new archive.json written beside the old one"
ARCHIVE_NOTED: Final = "segment noted as archived, its local copy still there"
ARCHIVE_FREEING: Final = "local copy of an archived segment about to be removed"
ARCHIVE_FREED: Final = "local copy of one archived segment removed, others to follow"
ARCHIVE_REMOVED: Final = "segment removed from the archive, still noted"
CLOSE_FLUSHED: Final = "everything synced at closing, no clean marker"

ALL: Final = tuple(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))

ARCHIVING: Final = tuple(value for name, value in list(globals().items()) if name.startswith("ARCHIVE_"))

__all__ = ["ALL", "ARCHIVING", "reach", "tripped"]
