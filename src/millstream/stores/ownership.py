"""Who may write a view: a pure decision from who keeps it, who asks, and which batch it brings.

A view belongs to the checkpoint that filled it. A run with another checkpoint (another data folder, or one whose checkpoint was
lost) would have to empty it, and nothing is emptied unless the user has said so: by `millstream groups reset`, or by
`millstream views rebuild`, which gives the view to the next run that begins at the beginning.
"""

from __future__ import annotations

from enum import Enum

from millstream.settings import MillstreamError, Unreachable
from millstream.stores.store import Claim, Owner


class Step(Enum):
    """What is to be done with a batch."""

    WRITE = "write it"
    SKIP = "it is there already"
    BEGIN = "empty the view, then write it"


def decide(view: str, owner: Owner | None, claim: Claim, batch: int | None, *, filled: bool) -> Step:
    """Return what to do with a batch of `claim`, or with None whether the run may begin at all.

    view: its name for messages.   filled: whether the table has rows; only asked where nobody keeps it.
    Raises MillstreamError when the view is not the claim's, Unreachable when only waiting is needed.
    """
    if owner is None:
        return _unowned(view, batch, filled=filled)
    if owner.rebuild:
        return _rebuilt(view, owner, claim, batch)
    if owner.query != claim.query:
        raise MillstreamError(
            f"the view {view} is kept by the {owner.describe()}; the query {claim.query!r} wants to write it too. Nothing was"
            f" touched. Give one of them another name, or give the view up: `millstream views drop {view} --execute`."
        )
    if owner.query_id != claim.query_id:
        if owner.query_id in claim.earlier and batch in (None, 0):
            return Step.BEGIN
        raise _belongs(view, owner, claim)
    if owner.place not in (None, claim.place) and owner.active:
        raise Unreachable(
            f"the view {view} is kept by a run of the same checkpoint elsewhere: {owner.describe()}. Nothing was touched."
            f" End that run; this one, in {claim.place}, then continues."
        )
    return _next(view, owner, batch)


def _unowned(view: str, batch: int | None, *, filled: bool) -> Step:
    if filled:
        raise MillstreamError(
            f"the table {view} has rows that no query of Millstream's has written. Nothing was touched."
            " Rename or drop that table, or give the view another name."
        )
    if batch:
        raise MillstreamError(
            f"the view {view} lacks what the batches before number {batch} wrote: its table was dropped, or is from another"
            f" time than the checkpoint. To fill it from the beginning, end the run and type {_rebuild(view)}."
        )
    return Step.WRITE


def _rebuilt(view: str, owner: Owner, claim: Claim, batch: int | None) -> Step:
    if batch in (None, 0) and owner.query_id != claim.query_id:
        return Step.BEGIN
    raise MillstreamError(
        f"the view {view} is to be rebuilt from the beginning, and the run in {claim.place} would go on in the middle."
        f" Nothing was touched. End it and type {_rebuild(view)} there: that puts its checkpoint aside, and the next run"
        " begins at the beginning."
    )


def _next(view: str, owner: Owner, batch: int | None) -> Step:
    """The same checkpoint brings a batch: the next one, or the last one again after a crash."""
    if batch is None or batch == owner.batch_id + 1:
        return Step.WRITE
    if 0 <= owner.batch_id - batch <= 1:
        return Step.SKIP
    older = batch < owner.batch_id
    raise MillstreamError(
        f"the view {view} holds the batches up to number {owner.batch_id}, and the checkpoint brings number {batch}:"
        f" the {'checkpoint' if older else 'database'} is an older copy. Nothing was touched. Put the right one back, or end the"
        f" run and type {_rebuild(view)} to fill the view from the beginning."
    )


def _belongs(view: str, owner: Owner, claim: Claim) -> MillstreamError:
    rebuild = (
        f"To give it to this run, which empties it and fills it from the beginning: {_rebuild(view)}"
        f"{' (after that other run has ended)' if owner.active else ''}."
    )
    if owner.place == claim.place:
        return MillstreamError(
            f"the view {view} was filled under a checkpoint that is gone from here: {owner.describe()}. Nothing was touched."
            f" Put that checkpoint back. {rebuild}"
        )
    return MillstreamError(
        f"the view {view} belongs to another run: {owner.describe()}. This one is in {claim.place}. Nothing was touched."
        f" {rebuild} To keep both, give one application another name, or another database."
    )


def _rebuild(view: str) -> str:
    return f"`millstream views rebuild {view} --execute`"
