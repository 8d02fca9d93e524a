"""Builds the native core and installs the package in editable form, and says how far it is.

``build.py [--this-cpu] [pip's further arguments]``: pip's own words are kept back unless it fails.
With ``--this-cpu`` the best kernels of this CPU alone (``scripts/levels.py``).
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import time

from scripts.levels import here

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
"""As ninja counts."""
CPU_MINUTES = 8
"""From nothing: about four minutes on two cores of a Zen 4 with gcc 12."""
THIS_CPU = "--this-cpu"
CPU_SHARE = 0.4
"""Of the time, where one CPU's best kernels are built: 93 s of these."""
EVERY = 10
"""Seconds between two lines."""


def main(arguments: list[str]) -> int:
    one, arguments = THIS_CPU in arguments, [x for x in arguments if x != THIS_CPU]
    share = CPU_SHARE if one else 1.0
    minutes = max(1, round(share * CPU_MINUTES / len(os.sched_getaffinity(0))))
    print(
        f"Building the native core: about {minutes} min from nothing, less after a change.",
        flush=True,
    )
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-v"]
    levels = ";".join(here()) if one else ""
    command += ["-C", f"cmake.define.KVASIR_LEVELS={levels}"]
    command += ["-C", f"cmake.define.KVASIR_BEST_ALONE={'ON' if one else 'OFF'}"]
    command += ["--no-build-isolation", "--no-deps", *arguments, "-e", "."]
    began = told = time.monotonic()
    last = collections.deque[str](maxlen=100)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            found = STEP.search(line)
            if found and time.monotonic() - told >= EVERY:
                told = time.monotonic()
                seconds = told - began
                print(f"  {found[1]} of {found[2]} files, {seconds:.0f} s", flush=True)
    if process.returncode:
        sys.stderr.writelines(last)
        return process.returncode
    print(f"Built in {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
