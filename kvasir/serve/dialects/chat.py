"""OpenAI: POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.events import ChatChunk
from kvasir.serve.answers.openai import ChatAnswer
from kvasir.serve.asked import Asked, Keep
from kvasir.serve.dialects.openai import ChoiceGrammar, asked_of, encode, finished
from kvasir.serve.dialects.spoken import delta_of, finish_of, more_of
from kvasir.serve.errors import describe_error
from kvasir.serve.logprobs import ChatLogprobs, PromptScores, TokenNames
from kvasir.serve.parts import HOLE, Parts, filled
from kvasir.serve.protocol import chat
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.thinking import (
    thinking_wish,
    thoughts_of,
    variables_of,
    with_message,
)
from kvasir.serve.protocol.tools import read_tools
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.text.prediction import read_prediction
from kvasir.tokenizer.messages import ChatMessage, read_messages
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.pieces import message_of

NAME = "chat"


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(chat.ChatRequest, body, chat.UNSUPPORTED, strict=strict)
    messages, notes = read_messages(request.messages, sees=True)
    if notes and strict:
        raise RequestError(notes[0], param="messages", code="unknown_parameter")
    params, names = chat.sampling_params(request), chat.names_of(request)
    asked = asked_of(request, NAME, params, names, warnings + notes)
    return replace(
        asked,
        messages=messages,
        add_special=request.add_special_tokens,
        add_generation_prompt=request.add_generation_prompt,
        continues_last=request.continue_final_message,
        tells_pieces=True,
        tools=read_tools(request.tools, request.tool_choice, parallel=request.parallel_tool_calls),
        keep=_keep(request),
        prediction=read_prediction(request.prediction, has_beams=request.use_beam_search),
        variables=variables_of(request, request.reasoning_effort),
        thinking=with_message(thinking_wish(request), request.reasoning_budget_message),
        thoughts=thoughts_of(
            request.reasoning_format, request.separate_reasoning, request.include_reasoning
        ),
        show=_shown(asked.show, request, messages),
    )


def _keep(request: chat.ChatRequest) -> Keep | None:
    if not request.store:
        return None
    return Keep(is_stored=True, is_resumable=True, metadata=dict(request.metadata or {}))


def _shown(show: Json, request: chat.ChatRequest, messages: Sequence[ChatMessage]) -> Json:
    if not request.include_reasoning:
        show = {**show, "reasoning": False}
    last = messages[-1]
    if request.echo and last.role == "assistant":
        return {**show, "said": last.content}
    return show


class ChatGrammar(ChoiceGrammar):
    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        kinds = {"kind": "chat.completion", "chunk_kind": "chat.completion.chunk"}
        super().__init__(resolved, envelope, **kinds)
        self._names = TokenNames(tokenizer, self._show.names_are_ids)
        self._logprobs: dict[int, ChatLogprobs] = {}
        self._scores = PromptScores(self._names)

    def _all_notes(self) -> Json:
        if not self._show.token_ids:
            return self._notes
        return {**self._notes, "prompt_token_ids": self._resolved.job.prompts[0]}

    def _first_choices(self) -> list[bytes]:
        content = encode(self._show.said)
        end = b'},"logprobs":null,"finish_reason":null,"stop_reason":null}'
        choice = b'"delta":{"role":"assistant","content":' + content + end
        return [b'{"index":%d,%b' % (i, choice) for i in range(self._resolved.job.n_choices)]

    def read(self, delta: Delta) -> Work[None]:
        if delta.scores and self._show.prompt_logprobs:
            yield from self._scores.add(delta.scores)
        if self._tells_logprobs:
            yield from self._of(delta.index).add(delta.logprobs)

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        if self._goes_on_with_text(delta):
            said = b'{"index":%d,"delta":{"content":%b},"logprobs":null'
            return [[self._head, said % (delta.index, encode(delta.text)), self._tail]]
        return self._worded(delta, tally)

    def _worded(self, delta: Delta, tally: Tally) -> list[Parts]:
        if not self._is_news(delta):
            return []
        if self._resolved.job.reading is None:
            content = b'"content":' + encode(delta.text) if delta.text else b""
        else:
            content = encode(delta_of(delta.pieces, reasons=self._show.reasoning))[1:-1]
        said = b'{"index":%d,"delta":{%b},"logprobs":' % (delta.index, content)
        choice = [said, *self._taken(delta.index), self._ids(delta), finished(delta)]
        return [self._event(choice, tally)]

    def _choice(self, index: int, choice: Whole) -> Parts:
        said = message_of(choice.pieces)
        value = {
            "index": index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                **more_of(said, reasons=self._show.reasoning),
                **({"content": self._show.said + choice.text} if self._show.said else {}),
            },
            "logprobs": HOLE,
            "finish_reason": finish_of(choice.finish, has_calls=choice.has_calls),
            "stop_reason": choice.stop_reason,
        }
        if self._show.token_ids:
            value["token_ids"] = choice.tokens
        return filled(value, self._taken(choice.index))

    def _filled(self, body: Json, choices: Parts) -> Parts:
        if not self._show.prompt_logprobs:
            return filled(body, choices)
        return filled({**body, "prompt_logprobs": HOLE}, choices, self._scores.parts())

    def _taken(self, index: int) -> Parts:
        return self._of(index).take() if self._tells_logprobs else [b"null"]

    def _of(self, index: int) -> ChatLogprobs:
        found = self._logprobs.get(index)
        if found is None:
            found = self._logprobs[index] = ChatLogprobs(self._names)
        return found


CHAT = Dialect(
    NAME,
    "chatcmpl-",
    read,
    ChatGrammar,
    describe_error,
    request=chat.ChatRequest,
    answer=(ChatAnswer,),
    events=(ChatChunk,),
)
