"""What the tests of the protocol share."""

from hypothesis import settings

# An example that takes long on a busy machine is no failure.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
