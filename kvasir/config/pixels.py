"""How large images of any size may become, in the words of vLLM's ``mm_processor_kwargs``."""

from __future__ import annotations

import json

import msgspec

from kvasir.core.errors import ConfigError

KEYS = ("min_pixels", "max_pixels")
MAX_JSON = 1000
LARGEST = 1 << 32


class PixelBounds(msgspec.Struct, frozen=True):
    """Of an image, in place of what the model's processor says; None: as that says."""

    min_pixels: int | None = None
    max_pixels: int | None = None


def pixel_bounds(said: str | None) -> PixelBounds | None:
    """None where nothing is asked for. Raises ConfigError."""
    if said is None:
        return None
    try:
        values = json.loads(said[:MAX_JSON])
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values or values.keys() - {*KEYS}:
        raise ConfigError(
            f"mm_processor_kwargs is {said[:80]!r}: needs a JSON object with "
            f"{' or '.join(KEYS)}, such as " + '{"max_pixels": 1003520}'
        )
    for name, value in values.items():
        if type(value) is not int or not 0 < value <= LARGEST:
            raise ConfigError(f"mm_processor_kwargs' {name} is {value!r}: needs a number of pixels")
    bounds = PixelBounds(**values)
    if (bounds.min_pixels or 0) > (bounds.max_pixels or LARGEST):
        raise ConfigError(
            f"mm_processor_kwargs' min_pixels {bounds.min_pixels} is above its max_pixels "
            f"{bounds.max_pixels}"
        )
    return bounds
