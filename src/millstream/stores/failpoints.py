"""Places in a store's write where a crash may hurt."""

from __future__ import annotations

from typing import Final

from millstream.settings.failpoints import VARIABLE, reach

CHECKED: Final = "view checked, nothing written"
EMPTIED: Final = "view emptied, its rows not written"
WRITTEN: Final = "rows written, their batch not noted"
NOTED: Final = "batch noted, not committed"
COMMITTED: Final = "batch committed, Spark not told"
TABLES: Final = (CHECKED, EMPTIED, WRITTEN, NOTED, COMMITTED)

TAKEN: Final = "transactional id taken, marker not read"
BEGUN: Final = "transaction begun, nothing produced"
PRODUCED: Final = "rows produced, marker not sent"
MARKED: Final = "marker sent, transaction not committed"
ENDED: Final = "transaction committed, Spark not told"
TOPICS: Final = (TAKEN, BEGUN, PRODUCED, MARKED, ENDED)

__all__ = ["TABLES", "TOPICS", "VARIABLE", "reach"]
