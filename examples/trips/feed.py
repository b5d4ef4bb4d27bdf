"""Trips of a made-up day, in the order of their start: `python feed.py 10000` sends as many."""

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from trips import Trip, trips

STATIONS = range(1, 21)
DAY = datetime(2026, 6, 1, tzinfo=UTC)


def made(count: int, seed: int = 0) -> Iterator[Trip]:
    """Yield trips, always the same for a seed, over 24 hours."""
    chance = random.Random(seed)
    for number in range(count):
        yield Trip(
            id=number,
            bike=f"bike-{chance.randrange(200)}",
            station=chance.choice(STATIONS),
            started_at=DAY + timedelta(days=1) * number / count,
            minutes=float(chance.randrange(1, 200)),
        )


if __name__ == "__main__":
    print(f"{trips.send_many(made(int(sys.argv[1]))):,} trips sent")
