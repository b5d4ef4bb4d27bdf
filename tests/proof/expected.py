"""What fails for a reason that is known: part, pattern of the test's name, reason. Everything else that fails, fails the proof.

A reason is never a loss, a reordering or a false success. Where ours differs from Kafka on purpose, `docs/limits.md` says so.
"""

EXPECTED: dict[str, dict[str, str]] = {}
