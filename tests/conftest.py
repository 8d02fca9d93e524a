"""Properties are tried on the same cases in every run; ``make explore`` looks for new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("KVASIR_CASES", "same"))
