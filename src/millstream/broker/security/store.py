"""What administrators store about access: SCRAM keys of users, access control lists, quotas; in one file of the data folder.

`access.json`, readable by its owner only, replaced as a whole and on disk before an administrator's request is answered:

    {"version": 1,
     "secret": base64 (32 random bytes: makes the challenges that unknown users get),
     "users": {name: {"SCRAM-SHA-256" | "SCRAM-SHA-512": {"salt", "stored_key", "server_key": base64, "iterations": int}}},
     "acls": [[resource type, pattern type, name, principal, host, operation, permission]]  (Kafka's numbers),
     "quotas": [{"user": name | null, "client-id": name | null, ..., "limits": {name: number}}]  (null: the default)}

Passwords are never in it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from millstream.broker.security.acls import Acl, Acls
from millstream.broker.security.scram import ITERATIONS, SALT_BYTES, Credential
from millstream.log.files import replace

NAME: Final = "access.json"
VERSION: Final = 1
WRITTEN: Final = "new access.json written beside the old one"
# Each user or quota takes memory and a part of the file, which every change writes again.
MAX_USERS: Final = 10_000
MAX_ACLS: Final = 10_000
MAX_QUOTAS: Final = 10_000

Entity = tuple[tuple[str, str | None], ...]  # (type, name; None: the default), sorted by type


class StoreError(Exception):
    """The file cannot be read or written; the text says why and what to do."""


class AccessStore:
    """The file's content in memory. Change it, then `save`; a change that cannot be saved is undone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.users: dict[str, dict[str, Credential]] = {}
        self.acls = Acls()
        self.quotas: dict[Entity, dict[str, float]] = {}
        self._secret = secrets.token_bytes(32)
        self.load()

    def load(self) -> None:
        """Read the file, if there is one. Raises StoreError."""
        self.users.clear()
        self.quotas.clear()
        self.acls.replace(())
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as e:
            raise StoreError(
                f"{self.path} cannot be read: {e}; restore it, or move it away and add the users again"
            ) from None
        if data.get("version") != VERSION:
            raise StoreError(
                f"{self.path} has version {data.get('version')}, expected {VERSION}: it is of a newer Millstream"
            )
        try:
            self._take(data)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StoreError(
                f"{self.path} is damaged ({e!r}); restore it, or move it away and add the users again"
            ) from None

    def _take(self, data: dict[str, Any]) -> None:
        self._secret = base64.b64decode(data["secret"])
        for name, kept in data["users"].items():
            self.users[name] = {
                mechanism: Credential(
                    base64.b64decode(c["salt"]),
                    base64.b64decode(c["stored_key"]),
                    base64.b64decode(c["server_key"]),
                    int(c["iterations"]),
                )
                for mechanism, c in kept.items()
            }
        self.acls.replace(Acl(*row) for row in data["acls"])
        for row in data["quotas"]:
            entity = tuple(
                sorted(((kind, name) for kind, name in row.items() if kind != "limits"), key=lambda part: part[0])
            )
            self.quotas[entity] = {name: float(value) for name, value in row["limits"].items()}

    def save(self) -> None:
        """Put the content on disk. Raises StoreError; the file then has its old content, and so has this object."""

        def text(value: bytes) -> str:
            return base64.b64encode(value).decode()

        users = {
            name: {
                mechanism: {
                    "salt": text(c.salt),
                    "stored_key": text(c.stored_key),
                    "server_key": text(c.server_key),
                    "iterations": c.iterations,
                }
                for mechanism, c in kept.items()
            }
            for name, kept in self.users.items()
        }
        quotas = [{**dict(entity), "limits": limits} for entity, limits in self.quotas.items()]
        acls = [list(acl) for acl in self.acls.all()]
        data = {"version": VERSION, "secret": text(self._secret), "users": users, "acls": acls, "quotas": quotas}
        try:
            replace(self.path, (json.dumps(data, indent=1) + "\n").encode(), point=WRITTEN)
        except OSError as e:
            self.load()
            raise StoreError(f"{self.path} cannot be written: {os.strerror(e.errno or 0)}") from None

    def credential(self, user: str, mechanism: str) -> Credential | None:
        """A user's credential."""
        return self.users.get(user, {}).get(mechanism)

    def challenge(self, user: str) -> Credential:
        """A credential that nobody has, always the same for a name: what an unknown user is asked to prove."""
        salt = hmac.digest(self._secret, b"salt of " + user.encode(), "sha256")[:SALT_BYTES]
        return Credential(salt, hmac.digest(self._secret, b"key of " + user.encode(), "sha256"), b"", ITERATIONS)
