"""Addresses of the parts that may live elsewhere, and the secrets in them, which are named by reference and never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millstream.settings.errors import MillstreamError

# What looks like a secret in a connection string, a URL or an option's name; used only to hide, never to parse.
_SECRET_OPTION = re.compile(r"(password|secret|token|jaas|key\.pem)", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(
    r"""(?ix) (?P<lead> \b(?:password|passwd|secret|token|sslpassword) \s*=\s* )
        (?: '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | [^\s&'"]+ )
      | (?P<url> \b[a-z][a-z0-9+.-]*://[^\s:/@]*: ) [^\s@/]+ (?=@)"""
)


def redact(text: str) -> str:
    """Return `text` with every password, token and secret in connection strings and URLs replaced by `***`."""
    return _SECRET_IN_TEXT.sub(lambda found: (found["lead"] or found["url"]) + "***", text)


def is_clear_secret(name: str, value: str) -> bool:
    """Whether a setting holds a password itself, instead of a reference to where it is."""
    if value.startswith(("env:", "file:")):
        return False
    return redact(value) != value or bool(_SECRET_OPTION.search(name))


def resolve(value: str, where: str) -> str:
    """Return the value that a reference names: `env:NAME`, `file:PATH`, or `value` itself.

    Raises MillstreamError when the variable or the file is missing. `where` names the setting in the message.
    """
    if value.startswith("env:"):
        name = value[4:]
        if name not in os.environ:
            raise MillstreamError(
                f"{where} refers to the environment variable {name}, which is not set. Set it and start again."
            )
        return os.environ[name]
    if value.startswith("file:"):
        path = Path(value[5:]).expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise MillstreamError(
                f"{where} refers to the file {path}, which cannot be read: {error.strerror}."
            ) from error
    return value


@dataclass(frozen=True)
class Kafka:
    """The address of a Kafka-protocol log, the embedded broker's or Apache Kafka's.

    `options` are librdkafka's client properties (`security.protocol`, `sasl.username`, …), with secrets already resolved.
    """

    bootstrap: str
    options: Mapping[str, str] = field(default_factory=dict)

    def client(self, **more: object) -> dict[str, object]:
        """Return the configuration for a confluent-kafka client; keywords use `_` where the property has a dot."""
        return {
            "bootstrap.servers": self.bootstrap,
            **self.options,
            **{k.replace("_", "."): v for k, v in more.items()},
        }

    def __repr__(self) -> str:
        shown = {k: "***" if _SECRET_OPTION.search(k) else v for k, v in self.options.items()}
        return f"Kafka({self.bootstrap!r}, {shown})"
