"""How a model sees images: what its files say of it, for requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvasir.core.errors import ModelError, RequestError
from kvasir.core.tiles import Preparing, Resizing
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.vision.placeholders import IMAGE, Placeholders, written
from kvasir.weights.source import ModelSource


_PAD = "<|image_pad|>"
"""Of Qwen."""


@dataclass(frozen=True, slots=True)
class Sight:
    slicing: Preparing
    placeholders: Placeholders


def sight_of(source: ModelSource, tokenizer: Tokenizer) -> Sight | None:
    """None for a model that sees nothing. Raises ModelError where its files do not fit."""
    if source.kind != "hf" or "vision_config" not in source.config:
        return None
    # NumPy and all families, 0.2 s and 25 MB, which only a model that sees has to bring.
    from kvasir.models.keys import Keys
    from kvasir.models.tower import n_tokens_of, sees, slicing_of

    if not sees(source):
        return None
    keys = Keys(source.config, f"{source.path}: config.json")
    image, n, slicing = keys.integer("image_token_id", least=0), n_tokens_of(source), slicing_of(source)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    name = _PAD if isinstance(slicing, Resizing) else IMAGE
    if not _writes(encode, image, n, slicing):
        raise ModelError(
            f"{source.path}: the tokenizer does not write {name} as token {image}, the "
            "image_token_id of config.json: check that both are of one model"
        )
    return Sight(slicing, Placeholders(image, n, encode))


def _writes(encode: Callable[[str], list[int]], image: int, n: int, slicing: Preparing) -> bool:
    """Whether the tokens of images are those of the model."""
    if isinstance(slicing, Resizing):
        return encode(_PAD) == [image]
    counts = ((encode(written(x, y, n)).count(image), x * y + 1) for x, y in ((0, 0), (1, 2)))
    return all(found == n_tiles * n for found, n_tiles in counts)


def check_pillow() -> str:
    """The version of what reads images, which is loaded in a process of its own alone. Raises
    RequestError (501) where the extra is not installed."""
    try:
        from PIL import __version__
    except ImportError:
        raise RequestError(
            "this server was installed without what reads images: pip install 'kvasir-llm[vision]'",
            param="messages",
            code="extra_missing",
            status=501,
        ) from None
    return __version__
