"""The forms in which a user may write prompts and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvasir.core.errors import RequestError
from kvasir.core.request import PLAIN, Context
from kvasir.core.tiles import Media
from kvasir.text.vectors import ids_with_prompt
from kvasir.tokenizer.messages import IMAGE_KIND, ImagePart, is_list, read_messages
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.standing import check_salt
from kvasir.vision.eye import Eye, images_in

PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
IMAGES_KEY = "multi_modal_data"
PICTURE = "image_pil"
"""Of a part of a message that is an image of Pillow's, and its field that has it; as in vLLM."""
_NO_DATA = "data:image/any;base64,"
"""In the place of one, for who reads messages."""


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    text: str | None = None
    """None when it was given as ids."""
    context: Context = PLAIN
    name: str = "prompt"
    """What errors call it."""
    second: int = 0
    """As in ``EngineRequest``."""
    media: tuple[Media, ...] = ()
    """The same."""


def read_prompts(prompts: object, tokenizer: Tokenizer, eye: Eye | None = None) -> list[Prompt]:
    """Prompts of a text, ids, a dict as in vLLM, or a list of them; with images where there is an
    ``eye``. Raises RequestError."""
    if isinstance(prompts, str | Mapping) or _is_ids(prompts):
        return [_read_prompt(prompts, tokenizer, eye)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise _wrong(prompts)
    return [_read_prompt(prompt, tokenizer, eye) for prompt in prompts]


def prompted(prompts: object, before: str, is_asked: bool) -> object:
    """With ``before`` in front of each text. Ids stay as they are; ``is_asked``: they are refused,
    by RequestError."""
    if isinstance(prompts, str):
        return before + prompts
    if isinstance(prompts, Mapping):
        text = prompts.get("prompt")
        if isinstance(text, str) and prompts.get("prompt_token_ids") is None:
            return {**prompts, "prompt": before + text}
    elif isinstance(prompts, Sequence) and not isinstance(prompts, bytes) and not _is_ids(prompts):
        return [prompted(each, before, is_asked) for each in prompts]
    if is_asked:
        raise ids_with_prompt()
    return prompts


def truncated(prompts: list[Prompt], limit: int | None, context: int) -> list[Prompt]:
    """Of those that are longer the last ``limit`` tokens are left; -1 stands for ``context``.
    Raises RequestError."""
    if limit is None:
        return prompts
    if limit == 0 or limit < -1:
        raise RequestError(
            f"truncate_prompt_tokens is {limit}: needs -1 or at least 1",
            param="truncate_prompt_tokens",
        )
    n = context if limit == -1 else limit
    return [replace(prompt, ids=prompt.ids[-n:]) for prompt in prompts]


def _read_prompt(prompt: object, tokenizer: Tokenizer, eye: Eye | None) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(tuple(tokenizer.encode(prompt)), prompt)
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt, tokenizer, eye)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return Prompt(tuple(prompt))
    raise _wrong(prompt)


def _read_mapping(prompt: Mapping[str, object], tokenizer: Tokenizer, eye: Eye | None) -> Prompt:
    if eye is not None and prompt.get(IMAGES_KEY) is not None:
        data = prompt[IMAGES_KEY]
        rest = {key: value for key, value in prompt.items() if key != IMAGES_KEY}
        text = prompt.get("prompt")
        if isinstance(text, str):
            rest["prompt"] = eye.spelled(text)
        found = _read_mapping(rest, tokenizer, None)
        seen = eye.expand(found.ids, images_in(data), IMAGES_KEY)
        shown = text if isinstance(text, str) else None
        return replace(found, text=shown, ids=seen.ids, media=seen.media)
    unknown = sorted(map(str, prompt.keys() - PROMPT_KEYS))
    if unknown:
        raise RequestError(f"a prompt has unknown keys: {', '.join(unknown)}", param="prompt")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    context = Context(check_salt(prompt.get("cache_salt")))
    if text is not None and not isinstance(text, str):
        raise _wrong(text)
    if ids is None:
        if text is None:
            raise RequestError("a prompt needs the key prompt or prompt_token_ids", param="prompt")
        return replace(_read_prompt(text, tokenizer, None), context=context)
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise RequestError("prompt_token_ids must be a list of token ids", param="prompt")
    return Prompt(tuple(ids), text, context, "prompt_token_ids")


def _is_ids(value: object) -> bool:
    """A non-empty list whose first entry is an id; the validator sees the others."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and len(value) > 0 and isinstance(value[0], int)  # type: ignore[arg-type, index]


def _wrong(value: object) -> RequestError:
    kind = type(value).__name__
    return RequestError(f"a prompt is a text or a list of token ids, not {kind}", param="prompt")


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation as a template takes it, and its images in their order, as an ``Eye`` takes
    them."""

    messages: list[dict[str, object]]
    images: tuple[object, ...] = ()


def read_conversations(messages: object) -> tuple[list[Talk], tuple[str, ...]]:
    """One conversation (a list of messages) or each of a list of them, and warnings about what is
    ignored. Raises RequestError."""
    many: Sequence[object] = [messages]
    if is_list(messages) and len(messages) > 0 and is_list(messages[0]):
        many = messages
    talks: list[Talk] = []
    warnings: dict[str, None] = {}
    for conversation in many:
        plain, pictures = _without_pictures(conversation)
        read, notes = read_messages(plain, sees=True)
        images = [image for message in read for image in message.images]
        found = tuple(pictures[x.where] if x.where in pictures else _data(x) for x in images)
        talks.append(Talk([message.said() for message in read], found))
        warnings |= dict.fromkeys(notes)
    return talks, tuple(warnings)


def _without_pictures(conversation: object) -> tuple[object, dict[str, object]]:
    """With empty images in the place of those of Pillow's, which are told by their fields."""
    if not is_list(conversation):
        return conversation, {}
    pictures: dict[str, object] = {}
    named = [(message, f"messages[{i}]") for i, message in enumerate(conversation)]
    return [_without(message, where, pictures) for message, where in named], pictures


def _without(message: object, where: str, pictures: dict[str, object]) -> object:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not is_list(content):
        return message
    parts: list[object] = []
    for i, part in enumerate(content):
        if isinstance(part, Mapping) and part.get("type") == PICTURE:
            pictures[f"{where}.content[{i}].{IMAGE_KIND}"] = part.get(PICTURE)
            part = {"type": IMAGE_KIND, IMAGE_KIND: _NO_DATA}
        parts.append(part)
    return {**message, "content": parts}


def _data(image: ImagePart) -> str:
    if image.address:
        raise RequestError(
            f"{image.where} must be a data URI, or a part of type {PICTURE}: nothing is fetched",
            param=image.where,
        )
    return image.data
