"""What the broker refuses: Kafka's error code and a text, which become the answer to a request or to one part of it."""

from __future__ import annotations


class Refused(Exception):
    """Something that a client asked for and does not get; `code` is Kafka's, the text says why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
