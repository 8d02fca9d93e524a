"""The images of a program's own prompts: where they stand, and their tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvasir.core.errors import RequestError
from kvasir.tokenizer.image_text import NO_IMAGES, ImageText
from kvasir.vision.placeholders import Expanded
from kvasir.vision.sight import Sight, check_pillow

IMAGE = "image"
"""The only modality."""


@dataclass(frozen=True, slots=True)
class Eye:
    """Of a model that runs in this process, or beside it."""

    sight: Sight | None

    @property
    def spelling(self) -> ImageText:
        """As in ``Sight``."""
        return NO_IMAGES if self.sight is None else self.sight.spelling

    def spelled(self, text: str) -> str:
        """A prompt in which the model's own placeholders stand for images."""
        mark = self.spelling.mark
        return text.replace(mark, self.spelling.text) if mark else text

    def check(self, images: Sequence[object], where: str) -> None:
        """Raises RequestError (400) where it reads none."""
        if images and self.sight is None:
            raise RequestError("this model reads no images: leave them out", param=where)

    def expand(self, ids: Sequence[int], images: Sequence[object], where: str) -> Expanded:
        """``ids`` with the tokens of ``images`` (of Pillow's, paths, files in base64) in place of
        each placeholder. Raises RequestError (400; 501 without Pillow)."""
        if not images:
            return Expanded(tuple(ids))
        self.check(images, where)
        assert self.sight is not None
        check_pillow()
        # Pillow, which only an extra brings.
        from kvasir.vision.direct import read_image

        placeholders, slicing = self.sight.placeholders, self.sight.slicing
        n = list(ids).count(placeholders.image)
        if n != len(images):
            raise RequestError(
                f"the prompt has {n} placeholders for {len(images)} images: write the model's own "
                "(such as <image>) where each stands, or send messages of a user",
                param=where,
            )
        tiles = [read_image(x, slicing, f"{where}[{i}]") for i, x in enumerate(images)]
        return placeholders.expand(ids, tiles)


def images_in(data: object) -> Sequence[object]:
    """Of a prompt's ``multi_modal_data``, as vLLM has it: one image, or a list of them, under the
    key ``image``. Raises RequestError (400)."""
    if not isinstance(data, Mapping) or data.keys() - {IMAGE}:
        raise RequestError(
            f"multi_modal_data must be a mapping with the key {IMAGE!r} and no other",
            param="multi_modal_data",
        )
    given = data.get(IMAGE, [])
    found = list(given) if isinstance(given, list | tuple) else [given]
    if any(isinstance(image, str | bytes) for image in found):
        raise RequestError(
            "multi_modal_data has a text for an image: give one of Pillow's, or a pathlib.Path",
            param="multi_modal_data",
        )
    return found
