"""One partition: a sequence of segments that is appended to at the end and read anywhere.

`append` is in appending.py, `read` in reader.py, what worker threads do in upkeep.py; what they share in state.py.
"""

from millstream.log.appending import Appended
from millstream.log.reader import Reader
from millstream.log.upkeep import Upkeep

__all__ = ["Appended", "Partition"]


class Partition(Reader, Upkeep):
    """A partition of a topic; made by the topic, which opens and recovers its folder."""
