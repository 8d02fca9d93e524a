"""What stands for an image in a text."""

from __future__ import annotations

from typing import NamedTuple


class ImageText(NamedTuple):
    mark: str = ""
    """What the template writes for one, if not its token."""
    text: str = ""
    """What stands in the place of that in a prompt, with one token."""
    bare: str = ""
    """What is written for one by a template that knows none, as if it were a text."""


NO_IMAGES = ImageText()
