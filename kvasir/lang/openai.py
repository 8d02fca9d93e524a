"""Programs over any server of OpenAI's API. It tells no token ids: what was said is text, which it
tokenizes anew for each call. What it cannot do is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from kvasir.core.errors import RequestError
from kvasir.lang.calls import Answer, Calling, Counts, ProgramLine
from kvasir.lang.expressions import Role, Select
from kvasir.lang.http import Json, JsonServer, ServerError, first_model
from kvasir.lang.stopping import Stop
from kvasir.validation.sampling import OPENAI, SamplingParams, StructuredOutputs

SENT = frozenset({"max_tokens", "stop", "seed", "logit_bias", *OPENAI})
"""Fields that every such server has."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}


class OpenAIServer:
    """``url`` is the server's root or its /v1; ``model`` None takes the first that it lists."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """Raises ConfigError for what is no address, ServerError when nobody answers."""
        self._http = JsonServer(url, api_key)
        self._model = model or first_model(self._http)

    def begin(self) -> TextLine:
        return TextLine(self._http, self._model)


@dataclass(frozen=True, slots=True)
class TextLine:
    """Text for /v1/completions, or, once a turn has begun, messages for /v1/chat/completions."""

    http: JsonServer
    model: str
    text: str = ""
    messages: tuple[tuple[Role, str], ...] = ()
    is_open: bool = False

    def said(self, text: str) -> TextLine:
        if not text:
            return self
        line = replace(self, text=self.text + text)
        if not self.messages:
            return line
        if not self.is_open:
            raise RequestError(
                "text stands between two turns: say it inside one (system, user, assistant)"
            )
        role, before = self.messages[-1]
        return replace(line, messages=(*self.messages[:-1], (role, before + text)))

    def opened(self, role: Role) -> TextLine:
        if self.text and not self.messages:
            raise RequestError("a turn begins after text without turns: use one or the other")
        if self.is_open:
            raise RequestError(f"a turn of {role} begins inside one of {self.messages[-1][0]}")
        return replace(self, messages=(*self.messages, (role, "")), is_open=True)

    def closed(self) -> TextLine:
        return replace(self, is_open=False)

    def generate(self, calling: Calling) -> tuple[ProgramLine, Answer]:
        body = {"model": self.model, **_fields(calling.params)}
        outputs = calling.params.structured_outputs
        if not self.messages:
            if outputs is not None:
                raise _refused(f"{_form(outputs)} outside turns")
            path = "/v1/completions"
            body |= {"prompt": self.text}
        else:
            path = "/v1/chat/completions"
            body |= {"messages": self._asked()} | _response_format(outputs)
        if calling.listen is None:
            found = self.http.post(path, body, calling.stop)
            answer = _answer(found, [found])
        else:
            answer = self._streamed(path, body, calling)
        return self.said(answer.text), answer

    def select(self, select: Select, calling: Calling) -> tuple[ProgramLine, Answer]:
        raise _refused("select, which needs the log probabilities of a prompt")

    def shared(self, stop: Stop) -> tuple[ProgramLine, Counts]:
        """Whether branches share anything is for the server to know."""
        return self, Counts()

    def close(self) -> None:
        """Nothing is kept there."""

    def _asked(self) -> list[Json]:
        role, text = self.messages[-1]
        if not self.is_open or role != "assistant":
            raise RequestError("a call stands outside the turns of the assistant: say it in one")
        if text:
            raise _refused("a call behind other text of its turn")
        return [{"role": role, "content": text} for role, text in self.messages[:-1]]

    def _streamed(self, path: str, body: Json, calling: Calling) -> Answer:
        listen = calling.listen
        events: list[Json] = []
        for event in self.http.events(path, body | {"stream": True}, calling.stop):
            events.append(event)
            text = _text(event)
            if text and listen is not None:
                listen(text)
        return _answer({}, events)


def _answer(whole: Json, told: list[Json]) -> Answer:
    """Of ``told``, a whole answer or its events, in their order; ``whole`` may have counts."""
    ends = [choice.get("finish_reason") for event in told for choice in event.get("choices") or ()]
    usage = whole.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    counts = Counts(
        int(usage.get("prompt_tokens") or 0),
        int(cached or 0),
        int(usage.get("completion_tokens") or 0),
    )
    finish = next((end for end in reversed(ends) if end), None)
    return Answer("".join(map(_text, told)), (), finish, None, counts)


def _text(told: Json) -> str:
    """Raises ServerError for what OpenAI's API does not say."""
    try:
        parts = [
            choice["text"]
            if "text" in choice
            else (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            for choice in told.get("choices") or ()
        ]
        return "".join(parts)
    except (KeyError, TypeError, AttributeError):
        raise ServerError(f"the server sent what is no answer: {str(told)[:80]}") from None


def _fields(params: SamplingParams) -> Json:
    values = msgspec.structs.asdict(params)
    given = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    wrong = sorted(given.keys() - SENT - {"structured_outputs"})
    if wrong:
        raise _refused(", ".join(wrong))
    given |= {"max_tokens": params.max_tokens, "temperature": params.temperature}
    given["seed"] = (params.seed or 0) % 2**63  # their integers are signed
    given.pop("structured_outputs", None)
    found: Json = msgspec.to_builtins(given, str_keys=True)
    return found


def _response_format(outputs: StructuredOutputs | None) -> Json:
    if outputs is None:
        return {}
    if outputs.json is None:
        raise _refused(_form(outputs))
    schema = msgspec.json.decode(outputs.json) if isinstance(outputs.json, str) else outputs.json
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _form(outputs: StructuredOutputs) -> str:
    """What it is called in ``gen``."""
    if outputs.regex is not None:
        return "regex"
    return "grammar" if outputs.grammar is not None else "json_schema"


def _refused(what: str) -> RequestError:
    return RequestError(
        f"a server of OpenAI's API cannot do {what}: use kvasir.LLM or kvasir.lang.KvasirServer",
        code="unsupported_parameter",
    )
