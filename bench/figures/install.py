"""What an install takes, and in which ways it was tried."""

from __future__ import annotations

from typing import Any

from bench.figures.blocks import Blocks
from bench.figures.results import load
from bench.figures.target import Target, table

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
    "llguidance": "masks of grammars and schemas",
}
"""By lower-case name."""


def sizes_of_packages() -> str:
    document = load("install-size")
    found = document["results"]
    sizes = {name: int(each["bytes"]) for name, each in found["packages"].items()}
    large = {name: size for name, size in sizes.items() if size >= SMALLEST}
    rest = sum(sizes.values()) - sum(large.values())
    lines = [
        f"A base install, Python itself and pip apart, is {_mb(sum(sizes.values()))} MB without "
        f"bytecode (Python {document['machine']['python']}); our own part is {_mb(sizes[OWN])} MB "
        f"(kernels of seven instruction set levels), the wheel {found['wheel_bytes'] / 1e6:.1f} "
        "MB.",
        "",
        "| package | MB | for |",
        "|---|--:|---|",
        *(_row(name, size) for name, size in large.items()),
        f"| {len(sizes) - len(large)} others | {_mb(rest)} | |",
    ]
    return "\n".join(lines) + "\n"


def _way(name: str, package: int, on_disk: int) -> str:
    """``on_disk`` is 0 where nothing is installed."""
    return f"| {name} | {package / 1e6:.1f} MB | {_mb(on_disk) if on_disk else 'none'} |"


def _row(name: str, n_bytes: int) -> str:
    return f"| {name} | {_mb(n_bytes)} | {USES.get(name.lower(), '')} |"


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f}"


def ways() -> str:
    """Those that went through."""
    head = ["| way | of | MB on disk, without bytecode |", "|---|--:|--:|"]
    found = load("install-ways", is_timed=False)["results"]
    rows = [
        _way(name, each["package_bytes"], each["installed_bytes"]) for name, each in found.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def _seconds(what: str, result: str, name: str, bound: float) -> Target:
    def read(document: dict[str, Any]) -> float:
        return float(document["results"][name]["seconds"])

    return Target(what, result, read, bound, "{:.0f} s", is_most=True)


def _bytes(what: str, result: str, path: tuple[str, ...], bound: float) -> Target:
    def read(document: dict[str, Any]) -> float:
        found: Any = document["results"]
        for name in path:
            found = found[name]
        return float(found) / 1e6

    return Target(what, result, read, bound, "{:.1f} MB", is_most=True, is_timed=False)


TARGETS = (
    _bytes("the wheel", "install-size", ("wheel_bytes",), 6.0),
    _bytes("the image, compressed", "install-ways", ("image", "package_bytes"), 110.0),
    _bytes("installed by uv", "install-uv-2cores", ("uv", "installed_bytes"), 140.0),
    Target("from the wheel by uv to the first answer, a model of 93 MB pulled from this machine "
           "included", "install-uv-2cores",
           lambda d: float(d["results"]["uv"]["to_first_answer_seconds"]), 15.0, "{:.1f} s", True),
    _seconds("`make serve` on a clone, until it serves", "build-serve-2cores", "serve", 110.0),
    _seconds("the same from a compiler cache", "build-serve-2cores", "serve, cached", 50.0),
    _seconds("all levels of a wheel, without a cache", "build-wheel-2cores", "wheel", 210.0),
)  # fmt: skip

INSTALL: Blocks = {
    "install-size": sizes_of_packages,
    "install-ways": ways,
    "install-targets": lambda: table(TARGETS),
}
