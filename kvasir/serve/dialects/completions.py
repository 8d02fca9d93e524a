"""OpenAI: POST /v1/completions."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.events import CompletionChunk
from kvasir.serve.answers.openai import CompletionAnswer
from kvasir.serve.asked import Asked, Prompt
from kvasir.serve.dialects.openai import ChoiceGrammar, asked_of, encode, finished
from kvasir.serve.errors import describe_error
from kvasir.serve.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    PromptScores,
    Table,
    TokenNames,
    joined,
)
from kvasir.serve.parts import HOLE, Parts, filled
from kvasir.serve.pieces import between
from kvasir.serve.protocol import completions
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Envelope, Ids, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer

NAME = "completions"


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    kind, idle = completions.CompletionRequest, completions.UNSUPPORTED
    request, warnings = parse_request(kind, body, idle, strict=strict)
    params, names = completions.sampling_params(request), completions.names_of(request)
    return replace(
        asked_of(request, NAME, params, names, warnings),
        prompts=_prompts(request),
        add_special=request.add_special_tokens,
        echoes=request.echo,
        scores_from=request.prompt_logprobs_start,
    )


def _prompts(request: completions.CompletionRequest) -> tuple[Prompt, ...]:
    """With a suffix, what a model fills in between, in the order of its markers."""
    if not request.suffix:
        return split_prompts(request.prompt)
    if not isinstance(request.prompt, str):
        raise RequestError("a suffix goes together with one prompt, as text", param="suffix")
    if request.echo:
        raise RequestError("a suffix does not go together with echo", param="suffix")
    return (between(request.prompt, request.suffix),)


def split_prompts(
    prompt: str | list[str | int | list[int]], name: str = "prompt"
) -> tuple[Prompt, ...]:
    """One text or list of ids for each prompt, in the field ``name``. Raises RequestError (400)."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise RequestError(f"the {name} is empty: it needs at least one token", param=name)
    integers = [item for item in prompt if isinstance(item, int)]
    if len(integers) == len(prompt):
        return (tuple(integers),)
    strings = [item for item in prompt if isinstance(item, str)]
    if len(strings) == len(prompt):
        return tuple(strings)
    lists = [tuple(item) for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        return tuple(lists)
    raise RequestError(f"{name} mixes texts, ids and lists of ids: use one of them", param=name)


class CompletionGrammar(ChoiceGrammar):
    """One choice per prompt and sample. The echo of the prompt comes first, if there is one; where
    it is all that was asked for nothing follows it."""

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        super().__init__(resolved, envelope, kind="text_completion", chunk_kind="text_completion")
        self._job, self._echoes = resolved.job, resolved.echoes
        self._is_silent = self._job.params.max_tokens == 0
        self._tells_text_alone = self._tells_text_alone and not self._is_silent
        self._names = TokenNames(tokenizer, self._show.names_are_ids)
        self._prompts: dict[int, PromptLogprobs] = {}
        self._scores: dict[int, PromptScores] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._echoed = [not self._echoes] * self._job.n_choices
        self._has_echo = bool(self._echoes) and self._tells_logprobs
        self._untold = set(range(self._job.n_choices)) if self._show.token_ids else set()
        """Choices whose events have not told the ids of their prompts."""

    def read(self, delta: Delta) -> Work[None]:
        if delta.scores and self._has_echo:
            yield from self._prompt(delta.index).add(delta.scores)
        if delta.scores and self._show.prompt_logprobs:
            yield from self._scores_of(delta.index).add(delta.scores)
        if self._tells_logprobs and not self._is_silent:
            yield from self._of(delta.index).add(delta.logprobs)

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        if self._goes_on_with_text(delta) and self._echoed[delta.index]:
            said = b'{"index":%d,"text":%b,"logprobs":null' % (delta.index, encode(delta.text))
            return [[self._head, said, self._tail]]
        return self._worded(delta, tally)

    def _worded(self, delta: Delta, tally: Tally) -> list[Parts]:
        found, index = [], delta.index
        if not self._echoed[index] and not self._waits(delta):
            self._echoed[index] = True
            tables = [self._prompt(index).table] if self._has_echo else []
            echo = Delta(index, self._prompt_text(index))
            found.append(self._told(echo, tables, tally))
        if self._is_news(delta):
            tables = self._taken(index)
            found.append(self._told(delta, tables, tally, is_silent=self._is_silent))
        return found

    def _told(
        self, delta: Delta, tables: list[Table], tally: Tally, *, is_silent: bool = False
    ) -> Parts:
        text = b'""' if is_silent else encode(delta.text)
        said = b'{"index":%d,"text":%b,"logprobs":' % (delta.index, text)
        ids = self._ids(delta)
        if delta.index in self._untold:
            self._untold.discard(delta.index)
            ids += b',"prompt_token_ids":' + encode(self._prompt_ids(delta.index))
        return self._event([said, *self._joined(tables), ids, finished(delta)], tally)

    def _choice(self, index: int, choice: Whole) -> Parts:
        own = choice.index
        tables = self._taken(own)
        if self._has_echo:
            tables.insert(0, self._prompt(own).table)
        value = {
            "index": index,
            "text": self._prompt_text(own) + ("" if self._is_silent else choice.text),
            "logprobs": HOLE,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }
        if self._show.token_ids:
            value |= {"token_ids": choice.tokens, "prompt_token_ids": self._prompt_ids(own)}
        if not self._show.prompt_logprobs:
            return filled(value, self._joined(tables))
        value["prompt_logprobs"] = HOLE
        return filled(value, self._joined(tables), self._scores_of(own).parts())

    def _waits(self, delta: Delta) -> bool:
        """For the scores of the prompt, which come before anything else."""
        has_begun = delta.n_tokens > 0 or delta.finish is not None
        return self._has_echo and not has_begun and not self._prompt(delta.index).is_whole

    def _joined(self, tables: list[Table]) -> Parts:
        return joined(tables) if self._tells_logprobs else [b"null"]

    def _prompt_ids(self, index: int) -> Ids:
        return self._job.prompts[index // self._job.params.n]

    def _prompt_text(self, index: int) -> str:
        return self._echoes[index // self._job.params.n].text if self._echoes else ""

    def _taken(self, index: int) -> list[Table]:
        return [self._of(index).take()] if self._tells_logprobs else []

    def _scores_of(self, index: int) -> PromptScores:
        """Of its prompt."""
        number = index // self._job.params.n
        found = self._scores.get(number)
        if found is None:
            found = self._scores[number] = PromptScores(self._names, self._job.scores_from)
        return found

    def _prompt(self, index: int) -> PromptLogprobs:
        number = index // self._job.params.n
        found = self._prompts.get(number)
        if found is None:
            first, begins = self._job.prompts[number][0], self._echoes[number].begins
            found = self._prompts[number] = PromptLogprobs(self._names, first, begins)
        return found

    def _of(self, index: int) -> CompletionLogprobs:
        found = self._logprobs.get(index)
        if found is None:
            found = self._logprobs[index] = CompletionLogprobs(
                self._names,
                skip_special=self._job.params.skip_special_tokens,
                begin=len(self._prompt_text(index)),
            )
        return found


COMPLETIONS = Dialect(
    NAME,
    "cmpl-",
    read,
    CompletionGrammar,
    describe_error,
    request=completions.CompletionRequest,
    answer=(CompletionAnswer,),
    events=(CompletionChunk,),
)
