"""Places in a delivery where a crash may hurt."""

from __future__ import annotations

from typing import Final

from millstream.settings.failpoints import VARIABLE, reach

MARKED: Final = "delivery marked as open, nothing written"
WRITTEN: Final = "alerts handed to the producer, not acknowledged"
ACKNOWLEDGED: Final = "alerts acknowledged, progress not committed"
COMMITTED: Final = "progress committed"
RECOVERED: Final = "written alerts read back, delivery not begun"

ALL: Final = (MARKED, WRITTEN, ACKNOWLEDGED, COMMITTED, RECOVERED)

__all__ = ["ALL", "VARIABLE", "reach"]
