"""Properties are tried on the same cases in every run; ``make explore`` looks for new ones."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("KVASIR_CASES", "same"))

# A shell that starts tests in the background makes them, and what they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
