"""The table of docs/install-size.md."""

from __future__ import annotations

from bench.figures.blocks import Blocks
from bench.figures.results import load

OWN = "kvasir-llm"
SMALLEST = 1.5e6
"""Bytes below which a package stands in the last row."""
USES = {
    "numpy": "arrays between Python and the native core, the reference executor; its BLAS",
    "uvloop": "the server's event loop",
    "tokenizers": "text to token ids",
    "hf-xet": "of huggingface-hub",
    OWN: "",
    "pygments": "of rich",
    "rich": "the terminal",
    "huggingface_hub": "what a hub holds, and who asks; of tokenizers, too",
    "pyyaml": "of huggingface-hub",
    "httptools": "HTTP parsing",
}
"""By lower-case name."""


def table() -> str:
    document = load("install-size")
    found = document["results"]
    sizes = {name: int(each["bytes"]) for name, each in found["packages"].items()}
    large = {name: size for name, size in sizes.items() if size >= SMALLEST}
    rest = sum(sizes.values()) - sum(large.values())
    lines = [
        f"A base install, Python itself and pip apart, is {_mb(sum(sizes.values()))} MB without "
        f"bytecode (Python {document['machine']['python']}); our own part is {_mb(sizes[OWN])} MB "
        f"(kernels of seven instruction set levels), the wheel {_mb(found['wheel_bytes'])} MB.",
        "",
        "| package | MB | for |",
        "|---|--:|---|",
        *(_row(name, size) for name, size in large.items()),
        f"| {len(sizes) - len(large)} others | {_mb(rest)} | |",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, n_bytes: int) -> str:
    return f"| {name} | {_mb(n_bytes)} | {USES.get(name.lower(), '')} |"


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f}"


INSTALL: Blocks = {"install-size": table}
