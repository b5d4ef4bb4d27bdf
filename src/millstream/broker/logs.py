"""The broker's log as text: one line per message, whatever a client called itself or its topics.

Client ids, software names, principals, topic names and texts of requests are strangers' words. A newline in one would forge
a line, ESC would command the terminal that shows the log, U+202E would turn the rest of the line around. They are escaped
here, at the one place where messages become text, and not where each is logged.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

# Longer messages are cut: before sign-in a client may send ids of 32 KiB.
MAX_MESSAGE_CHARACTERS = 4000


def escape(text: str) -> str:
    """The text with everything unprintable as Python writes it (`\\n`, `\\x1b`, `\\u202e`); what is printable stays."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class EscapingFormatter(logging.Formatter):
    """Messages on one line each; the lines of a traceback are indented, so that none looks like a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line of at most MAX_MESSAGE_CHARACTERS and what stands before the message."""
        message = record.message
        if len(message) > MAX_MESSAGE_CHARACTERS:
            more = len(message) - MAX_MESSAGE_CHARACTERS
            record.message = f"{message[:MAX_MESSAGE_CHARACTERS]}… ({more} more characters)"
        return escape(super().formatMessage(record))

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """A traceback; the text of the exception may be a client's."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """A stack, like a traceback."""
        return _indented(super().formatStack(stack_info))


def _indented(lines: str) -> str:
    return "\n".join("    " + escape(line) for line in lines.split("\n"))


def to_stderr(level: int) -> None:
    """Send the log of the whole process to stderr, from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
