"""SCRAM (RFC 5802, RFC 7677), the server's side: keys instead of passwords, and the exchange that proves one.

Values only: messages in, messages out. As in Kafka, user names and passwords are UTF-8 without SASLprep, and channel
binding is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# Kafka's bounds (ScramMechanism.minIterations, ScramControlManager.MAX_ITERATIONS): fewer are too easy to guess
# passwords from, more let a login burn the broker's time.
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
# What our own command uses.
ITERATIONS: Final = 8192
SALT_BYTES: Final = 24
# A client's first message holds a name and a nonce; more is garbage.
MAX_MESSAGE: Final = 4096

_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,]*))?,(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>(?:,.*)?))"
)
_FINAL = re.compile(r"(?P<bare>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]+)(?:,[^p][^,]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)")


class AuthenticationError(Exception):
    """The client has not proved who it is; the text is for the log, not for the client."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What is kept of a password: enough to check a proof, not enough to make one."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Hi() of RFC 5802: what the client makes of its password."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def credential(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """The keys that belong to a salted password."""
    name = HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(salt, stored, hmac.digest(salted, b"Server Key", name), iterations)


def matches(mechanism: str, known: Credential, password: bytes) -> bool:
    """Whether a password is the one behind a credential. Takes milliseconds: not for the event loop."""
    salted = salted_password(mechanism, password, known.salt, known.iterations)
    return hmac.compare_digest(credential(mechanism, salted, known.salt, known.iterations).stored_key, known.stored_key)


class Exchange:
    """One authentication: `first` answers the client's first message, `final` its proof.

    `find` gives a user's credential. An unknown user gets a challenge too (`unknown` makes it), so that names cannot
    be found out by asking.
    """

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], Credential | None],
        unknown: Callable[[str], Credential],
        nonce: str,
    ) -> None:
        self.user = ""
        self._hash = HASHES[mechanism]
        self._find = find
        self._unknown = unknown
        self._nonce = nonce
        self._known = False
        self._credential: Credential | None = None
        self._so_far = ""

    def first(self, message: bytes) -> bytes:
        """The server's first message: nonce, salt, iterations. Raises AuthenticationError."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationError("the first SCRAM message is malformed")
        if found["more"]:
            raise AuthenticationError(
                f"SCRAM extensions are not supported (delegation tokens among them): {found['more'][:80]}"
            )
        self.user = found["user"].replace("=2C", ",").replace("=3D", "=")
        if found["authzid"] and found["authzid"].replace("=2C", ",").replace("=3D", "=") != self.user:
            raise AuthenticationError(f"{self.user!r} cannot act as {found['authzid'][:80]!r}")
        known = self._find(self.user)
        self._known = known is not None
        self._credential = known or self._unknown(self.user)
        self._nonce = found["nonce"] + self._nonce
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._so_far = f"{found['bare']},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The server's signature, once the client's proof is right. Raises AuthenticationError."""
        found = _FINAL.fullmatch(_text(message))
        known = self._credential
        assert known is not None
        if found is None or found["binding"] != "biws" or found["nonce"] != self._nonce:
            raise AuthenticationError("the final SCRAM message is malformed or belongs to another exchange")
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except binascii.Error:
            raise AuthenticationError("the SCRAM proof is not base64") from None
        signed = f"{self._so_far},{found['bare']}".encode()
        signature = hmac.digest(known.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise AuthenticationError("the SCRAM proof has a wrong length")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), known.stored_key)
        if not (right and self._known):
            raise AuthenticationError(
                f"wrong password of {self.user!r}" if self._known else f"unknown user {self.user!r}"
            )
        return b"v=" + base64.b64encode(hmac.digest(known.server_key, signed, self._hash))


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE:
        raise AuthenticationError(f"a SCRAM message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a SCRAM message that is not UTF-8") from None
