"""What a base install takes on disk, package by package.

    python -m bench.install_size dist/kvasir_llm-*.whl --output bench/results/install-size.json

The wheel and what it needs are installed into a new environment by the caller's own pip
configuration, without bytecode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line

TOOLS = ("pip", "setuptools")
"""Of the environment itself."""


def installed(wheel: Path, folder: Path) -> dict[str, dict[str, str | int]]:
    """Per distribution its version and the bytes of its files, the largest first. Raises
    CalledProcessError when pip fails."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    found = {each.name: each for each in distributions(path=[str(site)])}
    sizes = {name: _bytes(each) for name, each in found.items() if name not in TOOLS}
    ordered = sorted(sizes, key=lambda name: -sizes[name])
    return {name: {"version": found[name].version, "bytes": sizes[name]} for name in ordered}


def _bytes(distribution: Distribution) -> int:
    """Of all its files; bytecode is not among them."""
    paths = [Path(str(file.locate())) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.exists() and path.suffix != ".pyc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        packages = installed(arguments.wheel, Path(folder) / "bare")
    document = {
        "kind": "install-size",
        "command": command_line("python -m bench.install_size"),
        "machine": fingerprint(),
        "results": {"wheel_bytes": arguments.wheel.stat().st_size, "packages": packages},
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
