"""How a model sees images: what its files say of it, for requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from kvasir.config.pixels import PixelBounds
from kvasir.core.errors import ConfigError, ModelError, RequestError
from kvasir.tokenizer.image_text import NO_IMAGES, ImageText
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.vision.messages import Tiles
from kvasir.vision.placeholders import Ids, Placeholders, written
from kvasir.vision.preparing import Preparing
from kvasir.vision.slicing import within
from kvasir.weights.source import ModelSource

_PAD = "<|image_pad|>"
"""What templates of Qwen write for an image."""


@dataclass(frozen=True, slots=True)
class Sight:
    slicing: Preparing
    placeholders: Placeholders
    spelling: ImageText = NO_IMAGES


def sight_of(
    source: ModelSource, tokenizer: Tokenizer, bounds: PixelBounds | None = None
) -> Sight | None:
    """None for a model that sees nothing. Raises ModelError where its files do not fit, and
    ConfigError where it cannot keep to ``bounds``."""
    is_blind = source.sight is None and "vision_config" not in source.config
    found = None if is_blind else _sight_of(source, tokenizer)
    if bounds is None:
        return found
    if found is None:
        raise ConfigError("mm_processor_kwargs: this model reads no images: leave it out")
    return replace(found, slicing=within(found.slicing, bounds))


def _sight_of(source: ModelSource, tokenizer: Tokenizer) -> Sight | None:
    # NumPy and all families, 0.2 s and 25 MB, which only a model that sees has to bring.
    from kvasir.checkpoints.keys import Keys
    from kvasir.checkpoints.mmproj import eyes_of
    from kvasir.checkpoints.tower import seeing_family
    from kvasir.models.family import PixtralTowerSpec, PooledTowerSpec, QwenTowerSpec
    from kvasir.vision.processor import n_tokens_of, slicing_of

    eyes = eyes_of(source)
    family = None if eyes is None else seeing_family(eyes)
    if eyes is None or family is None or family.tower is None:
        return None
    source, spec = eyes, family.tower
    keys = Keys(source.config, f"{source.path}: config.json")
    if isinstance(spec, PixtralTowerSpec):
        name = next((x for x in spec.image if keys.has(x)), spec.image[0])
        return _in_lines(source, tokenizer, keys.integer(name, least=0))
    if isinstance(spec, PooledTowerSpec):
        tokens = (keys.integer(name, n, least=0) for name, n in spec.tokens)
        return _between(source, tokenizer, *tokens)
    if isinstance(spec, QwenTowerSpec):
        token = keys.integer("image_token_id", least=0)
        image = _Image(source, tokenizer, token, n_tokens_of(source))
        image.check(_PAD, 1)
        alone = partial(image.of_all, (), ())
        return Sight(slicing_of(source), Placeholders(token, image.n_rows, alone))
    default = spec.image.default
    token = keys.integer(spec.image.hf, default if isinstance(default, int) else None, least=0)
    image = _Image(source, tokenizer, token, n_tokens_of(source))
    slicing, n_rows = slicing_of(source), image.n_rows
    if spec.cuts == "grid":
        image.check_tiles()
        return Sight(slicing, Placeholders(token, n_rows, image.of_grid))
    image.piece(token)
    if spec.cuts == "paved":
        return Sight(slicing, Placeholders(token, n_rows, partial(image.of_all, (), ())))
    if spec.cuts == "shape":
        places = Placeholders(token, n_rows, partial(image.of_all, *image.around()))
        return Sight(slicing, places, ImageText(bare=f"{image.piece(token)}\n"))
    begin, end = (image.piece(keys.integer(*each, least=0)) for each in _AROUND)
    spelled = f"\n\n{begin}{image.piece(token)}{end}\n\n"
    image.check(spelled, 1)
    return Sight(
        slicing,
        Placeholders(token, n_rows, partial(image.of_all, (), ())),
        ImageText(begin, spelled),
    )


def _between(source: ModelSource, tokenizer: Tokenizer, token: int, begin: int, end: int) -> Sight:
    """Of a model that has a token before an image of any shape, and one behind it."""
    from kvasir.vision.processor import n_tokens_of, slicing_of

    image = _Image(source, tokenizer, token, n_tokens_of(source))
    for each in (token, begin, end):
        image.piece(each)
    alone = partial(image.of_all, (), ())
    places = Placeholders(token, image.n_rows, alone, begin=(begin,), end=(end,))
    return Sight(slicing_of(source), places)


def _in_lines(source: ModelSource, tokenizer: Tokenizer, token: int) -> Sight:
    """Of a model that has tokens behind the lines of an image."""
    from kvasir.vision.processor import n_tokens_of, slicing_of

    image = _Image(source, tokenizer, token, n_tokens_of(source))
    image.piece(token)
    said = source.read_json(_PROCESSOR)
    names = [str(said.get(key) or name) for key, name in _NAMES_OF_ENDS]
    line_end, image_end = map(image.named, names)
    alone = partial(image.of_all, (), ())
    places = Placeholders(token, image.n_rows, alone, line_end, image_end)
    return Sight(slicing_of(source), places)


_PROCESSOR = "processor_config.json"
_NAMES_OF_ENDS = ("image_break_token", "[IMG_BREAK]"), ("image_end_token", "[IMG_END]")
"""Fields of it with the tokens behind a line of an image, and behind the last."""
_AROUND = ("boi_token_index", 255999), ("eoi_token_index", 256000)
"""Fields of config.json with the tokens before and behind an image that is one tile."""
_NAMES_AROUND = ("start_image_token", "<img>"), ("end_image_token", "</img>")
"""Fields of tokenizer_config.json with those around tiles by shape."""


@dataclass(frozen=True, slots=True)
class _Image:
    """How a tokenizer writes images."""

    source: ModelSource
    tokenizer: Tokenizer
    token: int
    n_rows: int
    """Of a tile."""

    def piece(self, token: int) -> str:
        """Raises ModelError for one that users could write, too."""
        piece = self.tokenizer.piece(token)
        if not piece or token not in self.tokenizer.special_ids:
            raise ModelError(
                f"{self.source.path}: the tokenizer has no special token {token}, which its "
                "files name: check that both are of one model"
            )
        return piece

    def check(self, text: str, n: int) -> None:
        """Raises ModelError unless ``text`` has the image's token ``n`` times."""
        if self.tokenizer.encode(text, add_special=False).count(self.token) != n:
            raise ModelError(
                f"{self.source.path}: the tokenizer does not write an image as token {self.token}, "
                "which config.json names: check that both are of one model"
            )

    def check_tiles(self) -> None:
        for rows, columns in ((0, 0), (1, 2)):
            self.check(written(rows, columns, self.n_rows), (rows * columns + 1) * self.n_rows)

    def around(self) -> tuple[Ids, Ids]:
        """Tokens before and behind all tiles of an image."""
        said = self.source.read_json("tokenizer_config.json")
        begin, end = (self.named(str(said.get(key) or name)) for key, name in _NAMES_AROUND)
        return begin, end

    def named(self, name: str) -> Ids:
        """The special token of that name. Raises ModelError."""
        ids = self.tokenizer.encode(name, add_special=False)
        self.piece(ids[0] if len(ids) == 1 else -1)
        return tuple(ids)

    def of_grid(self, tiles: Tiles) -> Ids:
        text = written(tiles.rows, tiles.columns, self.n_rows)
        return tuple(self.tokenizer.encode(text, add_special=False))

    def of_all(self, begin: Ids, end: Ids, tiles: Tiles) -> Ids:
        return *begin, *(self.token,) * (self.n_rows * len(tiles.pixels)), *end


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
