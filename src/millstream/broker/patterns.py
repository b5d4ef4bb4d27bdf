"""Regular expressions from clients, matched on the event loop: only such as cannot take long."""

from __future__ import annotations

import re
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

# Repetitions without an end in one pattern: matching a name of 249 characters takes at most about its length to this
# power. Stops patterns that are made to take for ever.
MAX_REPEATS = 4
MAX_LENGTH = 1000
# A repetition up to such a count counts as one without an end.
LARGE_COUNT = 20


class PatternError(ValueError):
    """A pattern that is wrong, or refused because it could take long; the text says why."""


def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern, to be used with fullmatch; raises PatternError.

    Kafka's brokers use RE2, which has neither backreferences nor look-around; they are refused here, too.
    """
    if len(text) > MAX_LENGTH:
        raise PatternError(f"a regular expression of {len(text)} characters: at most {MAX_LENGTH} are allowed")
    try:
        repeats = _repeats(parser.parse(text), False)
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as e:
        raise PatternError(f"not a regular expression: {e}") from None
    if repeats > MAX_REPEATS:
        raise PatternError(f"a regular expression with {repeats} repetitions: at most {MAX_REPEATS} are allowed")
    return compiled


def _repeats(tree: Any, inside: bool) -> int:
    """How many open repetitions the pattern holds; refuses one inside another, backreferences and look-around."""
    count = 0
    for code, argument in tree:
        if code in (codes.GROUPREF, codes.GROUPREF_EXISTS, codes.ASSERT, codes.ASSERT_NOT):
            raise PatternError("backreferences and look-around are not supported")
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, high, body = argument
            large = high is codes.MAXREPEAT or high >= LARGE_COUNT
            if large and inside:
                raise PatternError("a repetition inside a repetition is not supported")
            count += large + _repeats(body, inside or large)
        elif code is codes.SUBPATTERN:
            count += _repeats(argument[3], inside)
        elif code is codes.ATOMIC_GROUP:
            count += _repeats(argument, inside)
        elif code is codes.BRANCH:
            count += sum(_repeats(branch, inside) for branch in argument[1])
    return count
