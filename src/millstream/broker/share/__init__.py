"""Share groups (KIP-932): messages as work. Not served yet: docs/limits.md."""
