"""Quotas of users, client ids and IP addresses: Kafka's limits, precedence and throttle times, as values with time passed in.

Bytes, shares of the threads and new connections are rates over quota.window.num windows of quota.window.size.seconds.
Partitions created and deleted are taken from a bucket (KIP-599), of controller.quota.window.num windows of
controller.quota.window.size.seconds. Over the limit, a client waits as long as it takes to be back at it.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from millstream.broker.security.rates import Bucket, Rate
from millstream.broker.security.store import Entity

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"  # partitions per second
CONNECTION: Final = "connection_creation_rate"  # connections per second
# Limits that can be set, of users and client ids, and of IP addresses.
KEYS: Final = {PRODUCE: "long", FETCH: "long", REQUEST: "double", MUTATION: "double"}
IP_KEYS: Final = {CONNECTION: "int"}
LARGEST: Final = {"int": 0x7FFFFFFF, "long": 0x7FFFFFFFFFFFFFFF, "double": math.inf}
USER, CLIENT_ID, IP = "user", "client-id", "ip"
# Rates that are kept at most; beyond it those that have been at rest for their whole window are forgotten, and then
# the oldest. Stops clients that make up ever new names.
MAX_RATES: Final = 20_000

Limits = dict[str, float]
# Of which entity a rate is: user and client id, None where the quota does not tell them apart.
Place = tuple[str | None, str | None]
K = TypeVar("K")
V = TypeVar("V")


class Quotas:
    """The limits in force and the rates under them."""

    def __init__(self, entities: dict[Entity, Limits], window: tuple[int, int], mutations: tuple[int, int]) -> None:
        """Windows are given as seconds and number: those of rates, and those of buckets."""
        self._entities = entities
        self._window, self._count = window
        self._bucket_seconds = mutations[0] * mutations[1]
        self._found: dict[tuple[str, str, str], tuple[float, Place] | None] = {}
        self._rates: dict[tuple[str, Place], Rate] = {}
        self._buckets: dict[Place, Bucket] = {}
        self._addresses: dict[str | None, float] = {}
        self.active = False  # whether there are limits that every request must be measured for
        self.requests = False
        self.changed()

    def changed(self) -> None:
        """The limits have changed; rates go on."""
        self._found.clear()
        kept = {key for limits in self._entities.values() for key in limits}
        self.active = bool(kept & {PRODUCE, FETCH, REQUEST})
        self.requests = REQUEST in kept
        self._addresses = {}
        for entity, limits in self._entities.items():
            kind, name = entity[0]
            if kind == IP and CONNECTION in limits:
                self._addresses[None if name is None else plain_address(name)] = limits[CONNECTION]

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
        rate = self._rate(key, place, now)
        rate.add(amount, now)
        wait = rate.wait(limit, now)
        # A client's share of the threads never costs more than one window (ClientRequestQuotaManager).
        return min(wait, self._window * 1000) if key == REQUEST else wait

    def mutate(self, user: str, client: str, partitions: int, strict: bool, now: int) -> tuple[bool, int]:
        """Count partitions that are to be created or deleted: whether that may be, and for how many milliseconds to wait.

        Strictly, nothing may be once too much was (StrictControllerMutationQuota); else everything may, and has to be
        waited for (PermissiveControllerMutationQuota).
        """
        found = self.find(MUTATION, user, client)
        if found is None:
            return True, 0
        limit, place = found
        bucket = self._buckets.get(place)
        if bucket is None:
            _make_room(self._buckets, lambda other: other.idle(limit, now))
            bucket = self._buckets[place] = Bucket(self._bucket_seconds)
        if strict and (wait := bucket.wait(limit, now)):
            return False, wait
        bucket.take(partitions, limit, now)
        return True, 0 if strict else bucket.wait(limit, now)

    def connect(self, address: str, now: int) -> int:
        """Count a new connection from an IP address; for how many milliseconds it must not be made.

        One that must not does not count (ConnectionQuotas.recordIpConnectionMaybeThrottle).
        """
        if not self._addresses:
            return 0
        name = plain_address(address)
        limit = self._addresses.get(name, self._addresses.get(None))
        if limit is None:
            return 0
        rate = self._rate(CONNECTION, (name, None), now)
        rate.add(1, now)
        wait = rate.wait(limit, now)
        if wait:
            rate.add(-1, now)
        return min(wait, self._window * 1000)

    def burst(self, key: str, user: str, client: str) -> float:
        """The largest amount that can be counted at once without waiting."""
        found = self.find(key, user, client)
        return math.inf if found is None else found[0] * self._window * (self._count - 1)

    def _rate(self, key: str, place: Place, now: int) -> Rate:
        rate = self._rates.get((key, place))
        if rate is None:
            _make_room(self._rates, lambda other: other.idle(now))
            rate = self._rates[key, place] = Rate(self._window, self._count)
        return rate


def _make_room(kept: dict[K, V], idle: Callable[[V], bool]) -> None:
    """Forget what is at rest, and then the oldest, when there is too much."""
    if len(kept) >= MAX_RATES:
        for key in [key for key, value in kept.items() if idle(value)]:
            del kept[key]
        while len(kept) >= MAX_RATES:
            del kept[next(iter(kept))]


def plain_address(text: str) -> str:
    """An IP address in its one form: without a zone, and IPv4 as such where IPv6 wraps it. Raises ValueError."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def wrong_entity(parts: list[tuple[str, str | None]]) -> str | None:
    """What is wrong with an entity: its parts' kinds and names (None: the default of the kind)."""
    if not parts:
        return "Invalid empty client quota entity"
    kinds = [kind for kind, _ in parts]
    if len(set(kinds)) != len(kinds):
        return "Invalid client quota entity, duplicate entity entry"
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}"
        if name is not None and not name:
            return f"Empty {kind} not supported"
    if IP in kinds and len(kinds) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    if IP in kinds and (name := parts[0][1]) is not None:
        try:
            plain_address(name)
        except ValueError:
            return f"{name} is not a valid IP address (names of hosts are not looked up here)"
    return None


def wrong_limit(keys: Mapping[str, str], key: str, value: float) -> str | None:
    """What is wrong with a limit; `keys`: those of the entity, KEYS or IP_KEYS."""
    if key not in keys:
        return f"Invalid configuration key {key}; here they are {', '.join(keys)}"
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0"
    if value > LARGEST[keys[key]]:
        return f"Proposed value for {key} is too large for {keys[key]}."
    if keys[key] != "double" and value % 1 > 1e-6:
        return f"{key} cannot be a fractional value."
    return None
