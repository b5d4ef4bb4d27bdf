"""The functions on a made-up day, compared with what pandas says of it."""

from datetime import timedelta

import pandas as pd
import pytest
from feed import made
from support import Answer, Message, Ticket, answered, team_hours, urgent, waits

import millstream as ms

TICKETS, MESSAGES = map(list, zip(*made(400), strict=True))
AGENTS = [{"id": number, "team": ("red", "blue")[number % 2]} for number in range(1, 13)]


def frame(events: list[Ticket] | list[Message]) -> pd.DataFrame:
    return pd.DataFrame([{name: getattr(e, name) for name in type(e).__struct_fields__} for e in events])


def test_messages_by_team_and_hour():
    rows = ms.testing.run(team_hours, MESSAGES, AGENTS)
    joined = frame(MESSAGES).merge(pd.DataFrame(AGENTS).rename(columns={"id": "agent"}), on="agent")
    joined["length"] = joined["text"].str.len()
    expected = joined.groupby(["team", joined["sent_at"].dt.floor("h")])["length"].agg(["count", "mean"])
    assert len(rows) == len(expected)
    for row in rows:
        count, mean = expected.loc[row["team"], pd.Timestamp(row["hour_start"])]
        assert (row["messages"], row["mean_length"]) == (count, pytest.approx(mean))


def test_answers_within_two_hours_and_how_long_customers_wait():
    rows = ms.testing.run(answered, TICKETS, MESSAGES)
    joined = frame(TICKETS).merge(frame(MESSAGES), left_on="ticket", right_on="about")
    joined["waited"] = (joined["sent_at"] - joined["opened_at"]) / timedelta(minutes=1)
    joined = joined[(joined["waited"] >= 0) & (joined["waited"] <= 120)]
    assert len(rows) == len(joined) > 100
    shortest = {row["customer"]: row["shortest"] for row in ms.testing.run(waits, [Answer(**row) for row in rows])}
    assert shortest == pytest.approx(joined.groupby("customer")["waited"].min().to_dict())


def test_urgent_tickets_are_alerts_with_their_tags():
    rows = ms.testing.run(urgent, TICKETS)
    assert {row["ticket"]: row["tags"] for row in rows} == {t.ticket: t.tags for t in TICKETS if t.urgent}
