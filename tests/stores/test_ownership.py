"""Who may write a view: every case, without a database."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from millstream.settings import MillstreamError, Unreachable
from millstream.stores.ownership import Step, decide
from millstream.stores.store import Claim, Owner

MINE, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
CLAIM = Claim("app", "q", "here:/data", MINE)
OWNER = Owner("app", "v", "q", MINE, 7, place="here:/data")


def test_a_view_that_nobody_keeps_is_begun_at_the_beginning() -> None:
    assert decide("app.v", None, CLAIM, None, filled=False) is Step.WRITE
    assert decide("app.v", None, CLAIM, 0, filled=False) is Step.WRITE
    with pytest.raises(MillstreamError, match="lacks what the batches before number 3 wrote"):
        decide("app.v", None, CLAIM, 3, filled=False)
    with pytest.raises(MillstreamError, match="rows that no query of Millstream's has written"):
        decide("app.v", None, CLAIM, None, filled=True)


def test_the_owner_brings_the_next_batch_or_the_last_one_again() -> None:
    assert decide("app.v", OWNER, CLAIM, None, filled=True) is Step.WRITE
    assert decide("app.v", OWNER, CLAIM, 8, filled=True) is Step.WRITE
    assert decide("app.v", OWNER, CLAIM, 7, filled=True) is Step.SKIP
    with pytest.raises(MillstreamError, match="the checkpoint is an older copy"):
        decide("app.v", OWNER, CLAIM, 5, filled=True)
    with pytest.raises(MillstreamError, match="the database is an older copy"):
        decide("app.v", OWNER, CLAIM, 9, filled=True)


@pytest.mark.parametrize("batch", [None, 0, 8])
def test_another_checkpoint_is_refused_with_the_word_to_type(batch: int | None) -> None:
    elsewhere = replace(OWNER, query_id=OTHER, place="there:/data", active=True)
    with pytest.raises(MillstreamError, match=r"belongs to another run.*there:/data") as refused:
        decide("app.v", elsewhere, CLAIM, batch, filled=True)
    assert "`millstream views rebuild app.v --execute` (after that other run has ended)" in str(refused.value)
    assert "connected now" in str(refused.value)
    with pytest.raises(MillstreamError, match="filled under a checkpoint that is gone from here"):
        decide("app.v", replace(OWNER, query_id=OTHER), replace(CLAIM, query_id=None), batch, filled=True)


def test_what_the_user_gave_up_is_begun_again() -> None:
    given = replace(OWNER, query_id=OTHER, place="there:/data", rebuild=True)
    assert decide("app.v", given, CLAIM, None, filled=True) is Step.BEGIN
    assert decide("app.v", given, CLAIM, 0, filled=True) is Step.BEGIN
    with pytest.raises(MillstreamError, match="would go on in the middle"):
        decide("app.v", given, CLAIM, 4, filled=True)
    with pytest.raises(MillstreamError, match="would go on in the middle"):
        decide("app.v", replace(given, query_id=MINE), CLAIM, 8, filled=True)
    moved = replace(CLAIM, earlier=frozenset({OTHER}))
    assert decide("app.v", replace(OWNER, query_id=OTHER), moved, 0, filled=True) is Step.BEGIN
    with pytest.raises(MillstreamError, match="Nothing was touched"):
        decide("app.v", replace(OWNER, query_id=OTHER), moved, 1, filled=True)


def test_a_copy_of_the_checkpoint_waits_while_the_other_runs() -> None:
    copy = replace(OWNER, place="there:/copy", active=True)
    with pytest.raises(Unreachable, match="same checkpoint elsewhere"):
        decide("app.v", copy, CLAIM, 8, filled=True)
    assert decide("app.v", replace(copy, active=False), CLAIM, 8, filled=True) is Step.WRITE  # the folder has moved


def test_two_queries_do_not_share_a_view() -> None:
    with pytest.raises(MillstreamError, match="the query 'q' wants to write it too"):
        decide("app.v", replace(OWNER, query="other"), CLAIM, 8, filled=True)
