"""The table of docs/families.md: what tests compare of each family."""

from __future__ import annotations

from bench.figures.blocks import Blocks
from kvasir.cli.features import CHECKS, checks, features
from kvasir.models.families import FAMILIES


def families() -> str:
    rows = [
        "| family | GGUF | " + " | ".join(CHECKS) + " | has |",
        "|---|---|" + ":-:|" * 4 + "---|",
    ]
    for family in sorted(FAMILIES, key=lambda family: family.name):
        found = " | ".join("yes" if word in checks(family) else "" for word in CHECKS)
        gguf = f"`{family.gguf}`" if family.gguf else ""
        rows.append(f"| `{family.name}` | {gguf} | {found} | {', '.join(features(family))} |")
    return "\n".join(rows) + "\n"


FAMILY_TABLES: Blocks = {"families": families}
