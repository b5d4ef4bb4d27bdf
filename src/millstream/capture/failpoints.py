"""Places in a capture where a crash may hurt."""

from __future__ import annotations

from millstream.settings.failpoints import reach

PUBLISHED = "published"  # the publication is there, the slot is not
SLOT_CREATED = "slot-created"  # the slot is there, the state does not know
CHUNK_READ = "chunk-read"  # rows of the snapshot are held until the log has been read up to them
CHUNK_SENT = "chunk-sent"  # rows of the snapshot are with the producer, perhaps in the log
CHUNK_STORED = "chunk-stored"  # they are in the log, the state does not know
CHUNK_RECORDED = "chunk-recorded"
SWEEPING = "sweeping"  # some tombstones of rows that vanished unseen are with the producer
COPIED = "copied"  # a table is complete in the log, the state does not know
CHANGE_SENT = "change-sent"  # a change is with the producer, its transaction continues
KEY_CHANGING = "key-changing"  # the old key is deleted, the new one not yet written
TRUNCATING = "truncating"  # some tombstones of a truncate are with the producer
COMMIT_SENT = "commit-sent"  # a whole transaction is with the producer
FLUSHING = "flushing"  # some of what was received is with the producer, and is about to be waited for
STORED = "stored"  # everything is in the log, neither state nor source knows
RECORDED = "recorded"  # the state knows, the source does not
CONFIRMED = "confirmed"

ALL = tuple(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))

__all__ = ["ALL", "reach"]
