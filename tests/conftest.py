"""What holds for all tests."""

import signal

from hypothesis import settings

# A shell without job control has what it puts into the background ignore Ctrl-C, and Python leaves it so.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No time limit per example: the first one loads what it needs, and a shared machine has other things to do.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
