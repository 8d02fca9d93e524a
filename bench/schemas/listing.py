"""The part of a page that lists what the suite has as valid and is rejected."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from bench.schemas.cases import DRAFTS, suite_cases
from bench.schemas.verdict import Verdict, judge

PAGE = Path(__file__).parents[2] / "docs" / "json-schema.md"
_BLOCK = re.compile(r"(<!-- suite -->\n)(.*?)(<!-- end of suite -->)", re.DOTALL)


def rejected_rows(folder: Path) -> str:
    """Markdown of the drafts in the suite's ``folder``."""
    judged = [(draft, judge(case)) for draft in DRAFTS for case in suite_cases(folder, draft)]
    return _table(judged)


def _table(judged: Iterable[tuple[str, Verdict]]) -> str:
    drafts: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for draft, verdict in judged:
        for one, why in verdict.rejected:
            drafts[why, verdict.case.name, one.description].append(draft)
    lines = ["| why | file of the suite | valid instance | drafts |", "|---|---|---|---|"]
    for (why, name, said), found in sorted(drafts.items()):
        lines.append(f"| {why} | {name} | {said} | {', '.join(dict.fromkeys(found))} |")
    return "\n".join(lines) + "\n"


def listed(page: str) -> str:
    """The block of ``page``. Raises ValueError where there is none."""
    found = _BLOCK.search(page)
    if found is None:
        raise ValueError("the page has no block of the suite")
    return found[2]


def write(folder: Path) -> None:
    page, rows = PAGE.read_text("utf-8"), rejected_rows(folder)
    PAGE.write_text(_BLOCK.sub(lambda found: found[1] + rows + found[3], page), "utf-8")
