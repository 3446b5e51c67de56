"""For all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# No time limit for each example of a property: machines that run the tests are shared.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

# A shell ignores Ctrl-C for what it runs in the background, and so would every program that the tests start
# and interrupt. A signal with a handler reaches them in its default state.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
