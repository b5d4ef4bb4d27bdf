"""Share groups (KIP-932): messages as work."""
