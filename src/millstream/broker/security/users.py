"""Users and their SCRAM keys: Kafka's rules for setting them (ScramControlManager), and the command line's way."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from millstream.broker.security.scram import (
    HASHES,
    ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BYTES,
    credential,
    salted_password,
)
from millstream.broker.security.store import MAX_USERS, AccessStore
from millstream.protocol import errors
from millstream.settings import MillstreamError
from millstream.settings.addresses import resolve

if TYPE_CHECKING:
    from millstream.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest

NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: name for name, number in NUMBERS.items()}
_ADD = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<pairs>[^\]]*)\]")

Result = tuple[int, str | None]


def alter(store: AccessStore, request: AlterUserScramCredentialsRequest) -> dict[str, Result]:
    """Remove and set keys in memory; an error code and text per user."""
    results: dict[str, Result] = {}
    seen: set[str] = set()
    work = [(d.name, d.mechanism, None) for d in request.deletions]
    work += [(u.name, u.mechanism, u) for u in request.upsertions]  # type: ignore[misc]
    for name, _, _ in work:
        if name in seen:
            results[name] = errors.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
        seen.add(name)
    for name, number, wanted in work:
        if name in results:
            continue
        mechanism = _NAMES.get(number)
        found = store.users.get(name, {})
        if not name:
            results[name] = errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
        elif mechanism is None:
            results[name] = errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
        elif wanted is None:
            if mechanism not in found:
                results[name] = errors.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
                continue
            del found[mechanism]
            if not found:
                del store.users[name]
            results[name] = 0, None
        elif wanted.iterations < MIN_ITERATIONS:
            results[name] = errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        elif wanted.iterations > MAX_ITERATIONS:
            results[name] = errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        elif name not in store.users and len(store.users) >= MAX_USERS:
            results[name] = errors.UNACCEPTABLE_CREDENTIAL, f"There are {MAX_USERS} users already."
        else:
            kept = credential(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
            store.users.setdefault(name, {})[mechanism] = kept
            results[name] = 0, None
    return results


def add(store: AccessStore, text: str) -> str:
    """Set a user's keys from `SCRAM-SHA-256=[name=alice,password=env:ALICE]`; returns the name. Raises MillstreamError.

    The form is that of `kafka-storage.sh format --add-scram`, but the password is named by reference: what stands on a
    command line can be read by everyone on the machine.
    """
    form = "expected SCRAM-SHA-256=[name=NAME,password=env:VARIABLE] or password=file:PATH (or SCRAM-SHA-512)"
    found = _ADD.fullmatch(text.strip())
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split(",") if "=" in pair) if found else {}
    pairs = {key.strip(): value for key, value in pairs.items()}
    name, reference = pairs.pop("name", ""), pairs.pop("password", "")
    if found is None or found["mechanism"] not in HASHES or not name or not reference:
        raise MillstreamError(f"--add-scram: {form}")
    if not reference.startswith(("env:", "file:")):
        raise MillstreamError(f"--add-scram: the password of {name} stands on the command line; {form}")
    try:
        iterations = int(pairs.pop("iterations", str(ITERATIONS)))
    except ValueError:
        iterations = 0
    if pairs or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise MillstreamError(f"--add-scram: {form}; iterations={MIN_ITERATIONS} to {MAX_ITERATIONS} may be added")
    password = resolve(reference, f"--add-scram {name}").encode()
    if not password:
        raise MillstreamError(f"--add-scram: the password of {name} is empty; {form}")
    mechanism = found["mechanism"]
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    store.users.setdefault(name, {})[mechanism] = credential(mechanism, salted, salt, iterations)
    return name
