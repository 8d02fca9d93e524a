"""The forms in which a user may write prompts and conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvasir.core.errors import RequestError
from kvasir.core.request import PLAIN, Context
from kvasir.tokenizer.messages import is_list, read_messages
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.standing import check_salt

PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


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


def read_prompts(prompts: object, tokenizer: Tokenizer) -> list[Prompt]:
    """Prompts of a text, ids, a dict as in vLLM, or a list of them. Raises RequestError."""
    if isinstance(prompts, str | Mapping) or _is_ids(prompts):
        return [_read_prompt(prompts, tokenizer)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise _wrong(prompts)
    return [_read_prompt(prompt, tokenizer) for prompt in prompts]


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


def _read_prompt(prompt: object, tokenizer: Tokenizer) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(tuple(tokenizer.encode(prompt)), prompt)
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt, tokenizer)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        return Prompt(tuple(prompt))
    raise _wrong(prompt)


def _read_mapping(prompt: Mapping[str, object], tokenizer: Tokenizer) -> Prompt:
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
        return replace(_read_prompt(text, tokenizer), context=context)
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


Conversation = list[dict[str, object]]


def read_conversations(messages: object) -> tuple[list[Conversation], tuple[str, ...]]:
    """One conversation (a list of messages) or each of a list of them, as a template takes them;
    and warnings about what is ignored. Raises RequestError."""
    many: Sequence[object] = [messages]
    if is_list(messages) and len(messages) > 0 and is_list(messages[0]):
        many = messages
    conversations: list[Conversation] = []
    warnings: dict[str, None] = {}
    for conversation in many:
        read, notes = read_messages(conversation)
        conversations.append([message.said() for message in read])
        warnings |= dict.fromkeys(notes)
    return conversations, tuple(warnings)
