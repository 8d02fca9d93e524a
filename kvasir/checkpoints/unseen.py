"""Folders whose language model runs and whose tower does not."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.models.families.gemma4_vision import GEMMA4_VISION

_LACKS = (
    ("vision_config", "use_clipped_linears", "clipped matrices"),
    ("text_config", "hidden_size_per_layer_input", "embeddings of layers beside images"),
)
"""Gemma 4 E2B and E4B: tables and fields of config.json, and what they ask for."""


def why_unseen(config: Mapping[str, object]) -> str:
    """What the images of a model ask for that nothing here computes; empty where they are seen, or
    it has none."""
    if config.get("architectures") != list(GEMMA4_VISION.architectures):
        return ""
    found = []
    for table, field, what in _LACKS:
        fields = config.get(table)
        if isinstance(fields, Mapping) and fields.get(field):
            found.append(f"{what} ({table}.{field})")
    return " and ".join(found)
