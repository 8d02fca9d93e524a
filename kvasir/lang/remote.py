"""Programs over a Kvasir server. What they said lies here as ids, as with an ``LLM``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.lang.calls import Answer, Calling, Counts
from kvasir.lang.http import Json, JsonServer, ServerError, first_model
from kvasir.lang.stopping import Stop
from kvasir.lang.tokens import NOBODY, DrawnTokens, Ids, Scored, TokenLine, needs_places
from kvasir.lang.turns import Message
from kvasir.tokenizer.spelling import TextPiece
from kvasir.validation.sampling import SamplingParams

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
_COMPLETIONS = "/v1/completions"


class KvasirServer:
    """A Kvasir server at ``url``, its root or its /v1; ``model`` None takes the first that it
    serves. ``cache_ttl``: seconds that it keeps from eviction what a call computed."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        cache_ttl: int | None = None,
    ) -> None:
        """Raises ConfigError for what is no address, ServerError when nobody answers."""
        self._http = JsonServer(url, api_key)
        self._model = model or first_model(self._http)
        self._cache_ttl = cache_ttl

    def begin(self) -> TokenLine:
        return TokenLine(RemoteTokens(self._http, self._model, self._cache_ttl))


class RemoteTokens:
    def __init__(self, http: JsonServer, model: str, cache_ttl: int | None) -> None:
        self._http = http
        self._model = model
        self._cache_ttl = cache_ttl

    def encode(self, pieces: Sequence[TextPiece], is_first: bool, is_raw: bool) -> Ids:
        body = {
            "pieces": [{"text": piece.text, "special": piece.special} for piece in pieces],
            "add_special_tokens": is_first and is_raw,
            "continues": not is_first,
        }
        return tuple(self._post("/tokenize", body, Stop())["tokens"])

    def render(self, messages: Sequence[Message], begins_answer: bool) -> str:
        body = {"messages": list(messages), "add_generation_prompt": begins_answer}
        return str(self._post("/apply-template", body, Stop())["prompt"])

    def generate(self, ids: Ids, parent: int, calling: Calling) -> DrawnTokens:
        params = calling.params
        body = {
            "model": self._model,
            "prompt": list(ids),
            "return_token_ids": True,
            "cache_ttl": self._cache_ttl,
            **_fields(params),
            **({"logprobs": 0} if needs_places(params) else {}),
        }
        if calling.listen is None:
            found = _Found().add(self._post(_COMPLETIONS, body, calling.stop))
        else:
            found = self._streamed(body, calling.stop, calling.listen)
        return DrawnTokens(found.answer(len(ids)), tuple(found.begins))

    def score(self, ids: Ids, parent: int, choices: Sequence[Ids], stop: Stop) -> Scored:
        """The first alone: the others find in the cache what all begin with."""
        first = self._score(ids, choices[:1], stop)
        if len(choices) == 1:
            return first
        others = self._score(ids, choices[1:], stop)
        counts = Counts(
            first.counts.n_prompt + others.counts.n_prompt,
            first.counts.n_cached + others.counts.n_cached,
        )
        return Scored((*first.logprobs, *others.logprobs), counts)

    def _score(self, ids: Ids, choices: Sequence[Ids], stop: Stop) -> Scored:
        prompts = [[*ids, *choice] for choice in choices]
        body = {
            "prompt": prompts,
            "max_tokens": 0,
            "prompt_logprobs": 0,
            "prompt_logprobs_start": len(ids),
        }
        answer = self._post(_COMPLETIONS, body, stop)
        given = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        found = [
            _scores(choice["prompt_logprobs"], prompt, len(own))
            for choice, prompt, own in zip(given, prompts, choices, strict=True)
        ]
        return Scored(tuple(found), _counts(answer, sum(map(len, prompts))))

    def keep(self, ids: Ids, parent: int, stop: Stop) -> tuple[int, Counts]:
        """The server's prefix cache shares what branches begin with."""
        return NOBODY, Counts()

    def close(self) -> None:
        """What the server keeps it gives up by itself."""

    def _streamed(self, body: Json, stop: Stop, listen: Callable[[str], None]) -> _Found:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        found = _Found()
        for event in self._http.events(_COMPLETIONS, body, stop):
            n_chars = len(found.text)
            found.add(event)
            if len(found.text) > n_chars:
                listen(found.text[n_chars:])
        return found

    def _post(self, path: str, body: Json, stop: Stop) -> Json:
        return self._http.post(path, {"model": self._model, **body}, stop)


class _Found:
    """Of a completion, what its answer or the events so far have told."""

    def __init__(self) -> None:
        self.text = ""
        self.begins: list[int] = []
        self._ids: list[int] = []
        self._ends: tuple[str | None, int | str | None] = None, None
        self._usage: Json = {}

    def add(self, told: Json) -> _Found:
        """Raises ServerError for what no Kvasir says."""
        try:
            for choice in told["choices"]:
                self.text += choice["text"]
                self._ids += choice["token_ids"]
                self.begins += (choice.get("logprobs") or {}).get("text_offset") or ()
                if choice.get("finish_reason"):
                    self._ends = choice["finish_reason"], choice.get("stop_reason")
        except (KeyError, TypeError):
            raise ServerError(
                "the server tells no token ids: it is not Kvasir; use OpenAIServer"
            ) from None
        self._usage = told
        return self

    def answer(self, n_prompt: int) -> Answer:
        counts = _counts(self._usage, n_prompt)
        counts = Counts(n_prompt, counts.n_cached, len(self._ids))
        return Answer(self.text, tuple(self._ids), *self._ends, counts)


def _fields(params: SamplingParams) -> Json:
    """Those that are not defaults; the server's default of ``max_tokens`` may be another."""
    if params.max_tokens is None:
        raise RequestError("a call over HTTP needs a number as max_tokens", param="max_tokens")
    given = msgspec.structs.asdict(params)
    chosen = {name: value for name, value in given.items() if value != _DEFAULTS[name]}
    chosen |= {"max_tokens": params.max_tokens, "temperature": params.temperature}
    found: Json = msgspec.to_builtins(chosen, str_keys=True)
    return found


def _scores(told: Sequence[Any], prompt: Sequence[int], n: int) -> tuple[float, ...]:
    """Of the last ``n`` tokens of ``prompt``; 0 for the first of all."""
    entries = list(zip(told, prompt, strict=True))[-n:]
    return tuple(0.0 if e is None else float(e[str(i)]["logprob"]) for e, i in entries)


def _counts(told: Json, n_prompt: int) -> Counts:
    details = (told.get("usage") or {}).get("prompt_tokens_details") or {}
    return Counts(n_prompt, int(details.get("cached_tokens") or 0))
