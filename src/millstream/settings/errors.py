"""The error that a user sees: what was expected, what came, and what to do. Commands print it without a traceback."""


class MillstreamError(Exception):
    """Something the user can mend. Its text stands alone: it names the thing, what came, what was expected, and what to do."""


class Unreachable(MillstreamError):
    """A part that does not answer, or is not ready yet: waiting may mend it, so a part that keeps running tries again."""
