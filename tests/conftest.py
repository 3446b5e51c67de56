"""For all tests."""

from __future__ import annotations

import signal

# A shell ignores Ctrl-C for what it runs in the background, and so would every program that the tests start
# and interrupt. A signal with a handler reaches them in its default state.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
