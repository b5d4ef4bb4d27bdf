"""Tickets and messages of a made-up day, in the order of their times: `python feed.py 10000` sends as many tickets."""

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from support import Message, Ticket, messages, tickets

AGENTS = range(1, 13)
DAY = datetime(2026, 6, 1, tzinfo=UTC)
BATCH = 500  # events of each topic that are sent before those of the other


def made(count: int, seed: int = 0) -> Iterator[tuple[Ticket, Message]]:
    """Yield tickets over 24 hours, each with a message about an earlier one; always the same for a seed."""
    chance = random.Random(seed)
    for number in range(count):
        at = DAY + timedelta(days=1) * number / count
        ticket = Ticket(
            ticket=number,
            customer=f"customer-{chance.randrange(100)}",
            urgent=chance.random() < 0.02,
            tags=chance.sample(["bill", "login", "crash"], chance.randrange(3)),
            opened_at=at,
        )
        about = max(0, number - chance.randrange(1 + count // 8))
        text = "x" * chance.randrange(1, 80)
        yield ticket, Message(about=about, agent=chance.choice(AGENTS), text=text, sent_at=at)


if __name__ == "__main__":
    day = made(int(sys.argv[1]))
    while batch := list(islice(day, BATCH)):
        tickets.send_many(ticket for ticket, _ in batch)
        messages.send_many(message for _, message in batch)
    print("sent")
