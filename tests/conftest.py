"""What holds for all tests."""

from hypothesis import settings

# No time limit per example: the first one loads what it needs, and a shared machine has other things to do.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
