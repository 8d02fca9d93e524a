"""CommonMark's own examples, as markdown-it-py reads them without HTML. ``KVASIR_COMMONMARK`` is
their file."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.web.markdown_texts import different, has_node

EXAMPLES = os.environ.get("KVASIR_COMMONMARK", "")
LEAST = 0.97

pytestmark = [
    pytest.mark.skipif(not EXAMPLES, reason="make test-page has the examples"),
    pytest.mark.skipif(not has_node(), reason="node 20.19 or newer is not here"),
]


def test_examples_are_read_as_another_reads_them() -> None:
    examples = json.loads(Path(EXAMPLES).read_text("utf-8"))
    failed = different([each["markdown"] for each in examples])
    sections = Counter(examples[i]["section"] for i in failed)
    print(f"{len(failed)} of {len(examples)} differ: {dict(sections)}")
    print(*(examples[i]["example"] for i in failed))
    assert len(examples) > 600
    assert len(failed) <= (1 - LEAST) * len(examples), sections
