"""What is known right now: what a part said of itself, joined with its process and with the log's silence.

A query that said "running" before its process died keeps saying so in the status topic. What the supervisor says of the process
is newer, so it counts; without an answer of the log nothing is known at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.serve.state import PartState, QueryState, State

SILENT_S = 7 * 3600.0  # a part that runs repeats its facts every six hours, changed or not
UNKNOWN, SILENT = "unknown", "silent"
_UP = ("ready", "done")  # states of a process whose parts speak for themselves
_FINAL = ("failed", "done", "stopped")  # what a part says last stays true without its process
_SPARK = "spark"


def known(said: str, process: str | None, age: float | None, *, answers: bool = True) -> str:
    """Return the state of a part as it is known now.

    said: what it reported last. process: the state of its process, None where no supervisor reports. age: seconds since it
    reported, None when it never did. answers: whether the log does.
    """
    if not answers:
        return UNKNOWN
    if process is not None and process not in _UP and said not in _FINAL:
        return process
    if age is not None and age > SILENT_S and said not in _FINAL:
        return SILENT
    return said


def judged(state: State) -> State:
    """Return the state with every part's word replaced by what is known; what stands still is marked. Changes it in place."""
    answers = state.kafka.up
    processes = {p.name: p.state for p in state.processes}
    for query in state.queries:
        _judge(query, processes.get(_SPARK), state.at, answers)
        if query.batch is not None and query.batch < 0:
            query.batch = None  # before the first batch after a start
        if query.stale:
            query.rows_per_second = None
    for parts, process in ((state.captures, "capture-{}"), (state.replays, "replay"), (state.deliveries, "deliver")):
        _judge_all(parts, process, processes, state.at, answers)
    for part in state.processes:
        _judge(part, None, state.at, answers)
    return state


def _judge_all(parts: Iterable[PartState], process: str, processes: dict[str, str], at: float, answers: bool) -> None:
    for part in parts:
        _judge(part, processes.get(process.format(part.name)), at, answers)


def _judge(part: QueryState | PartState, process: str | None, at: float, answers: bool) -> None:
    said = part.state
    part.state = known(said, process, None if part.at is None else at - part.at, answers=answers)
    part.stale = part.state != said
