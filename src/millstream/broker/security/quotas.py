"""Quotas of users and client ids: Kafka's limits, precedence and throttle times, as values with time passed in.

A rate is measured over quota.window.num windows of quota.window.size.seconds, the running one included; a young rate
is taken over all but one of them, so that a burst of that length at the limit is free (Rate, SampledStat). Over the
limit, a client waits as long as it takes to bring the rate back to it (QuotaUtils.throttleTime).
"""

import math
from collections import deque
from typing import Final

from millstream.broker.security.store import Entity

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
# Limits that can be set. Kafka has two more, controller_mutation_rate and connection_creation_rate; a limit that is
# stored and not kept would be a false promise.
KEYS: Final = {PRODUCE: "long", FETCH: "long", REQUEST: "double"}
USER, CLIENT_ID = "user", "client-id"
# Rates that are kept at most; beyond it those that have been at rest for their whole window are forgotten, and then
# the oldest. Stops clients that make up ever new names.
MAX_RATES: Final = 20_000

Limits = dict[str, float]
# Of which entity a rate is: user and client id, None where the quota does not tell them apart.
Place = tuple[str | None, str | None]


class Rate:
    """How much per second, over the last windows. Times are in milliseconds."""

    __slots__ = ("_count", "_samples", "_window")

    def __init__(self, window_seconds: int, count: int) -> None:
        self._window = window_seconds * 1000
        self._count = count
        self._samples: deque[tuple[int, float]] = deque()  # start, amount

    def add(self, amount: float, now: int) -> None:
        """Something happened (negative: it did not, after all)."""
        samples = self._samples
        self._forget(now)
        if samples and now - samples[-1][0] < self._window:
            start, before = samples[-1]
            samples[-1] = start, before + amount
        else:
            samples.append((now, amount))

    def span(self, now: int) -> float:
        """The seconds that the rate is taken over."""
        self._forget(now)
        elapsed = now - self._samples[0][0] if self._samples else 0
        whole = elapsed // self._window
        if whole < self._count - 1:
            elapsed += (self._count - 1 - whole) * self._window
        return max(elapsed, self._window) / 1000

    def value(self, now: int) -> float:
        """The rate per second."""
        seconds = self.span(now)
        return math.fsum(amount for _, amount in self._samples) / seconds

    def idle(self, now: int) -> bool:
        """Whether nothing is remembered."""
        self._forget(now)
        return not self._samples

    def _forget(self, now: int) -> None:
        oldest = now - self._count * self._window
        while self._samples and self._samples[0][0] <= oldest:
            self._samples.popleft()


class Quotas:
    """The limits in force and the rates under them."""

    def __init__(self, entities: dict[Entity, Limits], window_seconds: int, count: int) -> None:
        self._entities = entities
        self._window = window_seconds
        self._count = count
        self._found: dict[tuple[str, str, str], tuple[float, Place] | None] = {}
        self._rates: dict[tuple[str, Place], Rate] = {}
        self.active = False
        self.requests = False
        self.changed()

    def changed(self) -> None:
        """The limits have changed; rates go on."""
        self._found.clear()
        self.active = bool(self._entities)
        self.requests = any(REQUEST in limits for limits in self._entities.values())

    def find(self, key: str, user: str, client: str) -> tuple[float, Place] | None:
        """The limit that counts for a user and client id, and whose rate it is about; Kafka's order of precedence."""
        asked = key, user, client
        try:
            return self._found[asked]
        except KeyError:
            pass
        order: tuple[tuple[Entity, Place], ...] = (
            (((CLIENT_ID, client), (USER, user)), (user, client)),
            (((CLIENT_ID, None), (USER, user)), (user, client)),
            (((USER, user),), (user, None)),
            (((CLIENT_ID, client), (USER, None)), (user, client)),
            (((CLIENT_ID, None), (USER, None)), (user, client)),
            (((USER, None),), (user, None)),
            (((CLIENT_ID, client),), (None, client)),
            (((CLIENT_ID, None),), (None, client)),
        )
        found = None
        for entity, place in order:
            limit = self._entities.get(entity, {}).get(key)
            if limit is not None:
                found = limit, place
                break
        if len(self._found) >= MAX_RATES:
            self._found.clear()
        self._found[asked] = found
        return found

    def record(self, key: str, user: str, client: str, amount: float, now: int) -> int:
        """Count an amount; for how many milliseconds the client must wait."""
        found = self.find(key, user, client)
        if found is None:
            return 0
        limit, place = found
        rate = self._rates.get((key, place))
        if rate is None:
            rate = self._new((key, place), now)
        rate.add(amount, now)
        excess = rate.value(now) - limit
        if excess <= 0:
            return 0
        wait = round(excess / limit * rate.span(now) * 1000)
        # A client's share of the threads never costs more than one window (ClientRequestQuotaManager).
        return min(wait, self._window * 1000) if key == REQUEST else wait

    def burst(self, key: str, user: str, client: str) -> float:
        """The largest amount that can be counted at once without waiting."""
        found = self.find(key, user, client)
        return math.inf if found is None else found[0] * self._window * (self._count - 1)

    def _new(self, at: tuple[str, Place], now: int) -> Rate:
        if len(self._rates) >= MAX_RATES:
            self._rates = {place: rate for place, rate in self._rates.items() if not rate.idle(now)}
            while len(self._rates) >= MAX_RATES:
                del self._rates[next(iter(self._rates))]
        rate = self._rates[at] = Rate(self._window, self._count)
        return rate


def wrong_entity(kinds: list[str]) -> str | None:
    """What is wrong with the kinds of an entity's parts."""
    if not kinds:
        return "Invalid empty client quota entity"
    if len(set(kinds)) != len(kinds):
        return "Invalid client quota entity, duplicate entity entry"
    for kind in kinds:
        if kind == "ip":
            return "Quotas of IP addresses are not kept here; max.connections.per.ip bounds their connections"
        if kind not in (USER, CLIENT_ID):
            return f"Unhandled client quota entity type: {kind}"
    return None


def wrong_limit(key: str, value: float) -> str | None:
    """What is wrong with a limit."""
    if key not in KEYS:
        return f"Invalid configuration key {key}; kept here are {', '.join(KEYS)}"
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0"
    if KEYS[key] == "long" and value % 1 > 1e-6:
        return f"{key} cannot be a fractional value."
    return None
