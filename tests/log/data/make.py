"""Writes the data folder of the present on-disk format: `python tests/log/data/make.py`.

Run once for each format version; what it wrote is kept, so that later versions prove that they read it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from millstream.log import Log
from millstream.log.log import FORMAT
from millstream.protocol import records

NOW = 1_760_000_000_000
HERE = Path(__file__).parent


def make(folder: Path) -> None:
    """A topic of each kind: several segments, all codecs, transactions, compaction, a moved start, a tombstone."""
    with Log(folder, clock=lambda: NOW / 1000) as log:
        small = {"internal.segment.bytes": "700", "retention.ms": "-1"}
        plain = log.create("plain", 2, small).partitions[1]
        for i in range(10):
            plain.append(
                records.build(
                    [(b"k", b"%d" % i, [("h", b"1")])],
                    NOW + i,
                    codec=i % 5,
                    producer_id=5,
                    producer_epoch=0,
                    base_sequence=i,
                ),
                NOW + i,
            )
        plain.delete_before(3)
        table = log.create(
            "table", 1, {**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        ).partitions[0]
        for i in range(30):
            table.append(records.build([(b"key %d" % (i % 4), None if i == 29 else b"%d" % i)], NOW), NOW)
        paid = log.create("paid", 1, {"retention.ms": "-1"}).partitions[0]
        for i, commit in enumerate((True, False, None)):
            paid.append(
                records.build(
                    [(b"k", b"%d" % i)], NOW, producer_id=i, producer_epoch=0, base_sequence=0, transactional=True
                ),
                NOW,
            )
            if commit is not None:
                marker = records.build_marker(i, 0, commit=commit, coordinator_epoch=0, timestamp=NOW)
                paid.append(marker, NOW, internal=True)
        assert log.next_producer_id() == 0
        while log.maintain(NOW):
            pass


if __name__ == "__main__":
    target = HERE / f"format-{FORMAT}"
    if target.exists():
        sys.exit(f"{target} is there already and must not change")
    make(target)
    (target / "lock").unlink()
    for name in ("building", "deleted"):
        shutil.rmtree(target / name)
