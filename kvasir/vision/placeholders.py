"""Tokens of a prompt that stand for images: what a template writes once for each becomes the tokens
of its tiles, as the model's processor has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvasir.core.errors import RequestError
from kvasir.core.tiles import Media, media_at
from kvasir.vision.messages import Paved, Read, Tiles, Uncut

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Of a model."""

    image: int
    """The token that stands for a row of a tile; templates write it for an image."""
    n_tokens: int
    """Rows of a tile, where all have as many."""
    ids_of: Callable[[Tiles], Ids]
    """The tokens of tiles, those that stand for rows among them."""
    line_end: Ids = ()
    """Tokens behind each line of an image that is not cut."""
    image_end: Ids = ()
    """As many in their place behind the last one."""
    begin: Ids = ()
    """Tokens before an image that is not cut."""
    end: Ids = ()
    """The same behind it."""

    def expand(self, ids: Sequence[int], images: Sequence[Read], first: int = 0) -> Expanded:
        """``ids`` of a template with the tokens of ``images`` in the place of each placeholder;
        ``first``: tokens before them. Raises RequestError (400) where it writes more or fewer."""
        n = list(ids).count(self.image)
        if n != len(images):
            raise RequestError(
                f"the model's chat template writes {n} images of {len(images)}: send them in "
                "messages of a user",
                param="messages",
                code="chat_template_error",
            )
        found: list[int] = []
        media: list[Media] = []
        left = iter(images)
        for token in ids:
            if token == self.image:
                self._add(next(left), found, media, first)
            else:
                found.append(token)
        return Expanded(tuple(found), tuple(media))

    def _add(self, read: Read, found: list[int], media: list[Media], first: int) -> None:
        if isinstance(read, Uncut):
            found.extend(self.begin)
            ids, at, breaks = self._whole(read), first + len(found), len(self.line_end)
            media.append(media_at(at, len(ids), read.pixels, read.columns, breaks))
            found.extend((*ids, *self.end))
            return
        if isinstance(read, Paved):
            self._pave(read, found, media, first)
            return
        parts, n_left = iter(read.pixels), 0
        for token in self.ids_of(read):
            if token == self.image:
                if not n_left:
                    n_left = self.n_tokens
                    media.append(media_at(first + len(found), n_left, next(parts)))
                n_left -= 1
            found.append(token)

    def _pave(self, read: Paved, found: list[int], media: list[Media], first: int) -> None:
        at, columns = first + len(found), read.columns + 1
        n = read.lines * columns
        media.append(media_at(at, self.n_tokens, read.whole))
        if n:
            canvas = read.canvas
            media.append(media_at(at + self.n_tokens, n, read.pixels, columns, canvas=canvas))
        found.extend((self.image,) * (self.n_tokens + n))

    def _whole(self, read: Uncut) -> Ids:
        line = (self.image,) * read.columns + self.line_end
        ids = line * read.lines
        return ids[: len(ids) - len(self.line_end)] + self.image_end


@dataclass(frozen=True, slots=True)
class Expanded:
    """Ids of a prompt, and what some of them stand for."""

    ids: Ids
    media: tuple[Media, ...] = ()


def written(rows: int, columns: int, n_tokens: int) -> str:
    """The text of an image's tokens in SmolVLM."""
    lines = [
        "".join(f"{AROUND}<row_{row}_col_{column}>{IMAGE * n_tokens}" for column in _count(columns))
        for row in _count(rows)
    ]
    whole = f"{AROUND}{WHOLE}{IMAGE * n_tokens}{AROUND}"
    return "".join(f"{line}\n" for line in lines) + ("\n" if lines else "") + whole


def _count(n: int) -> range:
    return range(1, n + 1)
