"""The offline engine: ``LLM(...).generate(...)`` with vLLM's arguments and results."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import TracebackType

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import SamplingParams
from kvasir.core.sizes import EngineSizes
from kvasir.engine.build import BuiltEngine, build_engine
from kvasir.engine.heap import trim
from kvasir.models.loaded import load_model
from kvasir.offline.arguments import split
from kvasir.offline.batch import Batch, Task
from kvasir.offline.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from kvasir.offline.prompts import Prompt, read_conversations, read_prompts
from kvasir.offline.turns import Turn, Turns, closed
from kvasir.sampling.names import Names
from kvasir.sampling.philox import seeds_from
from kvasir.sampling.standing import check_priorities
from kvasir.sampling.validate import check_prompt, check_room, resolve_choices
from kvasir.text.beam import Beam, BeamSearch, BeamSearchParams, Search
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass(frozen=True, slots=True)
class _Open:
    """What an LLM has until it is closed.

    No variable of an inner function: an error that came through it would keep it, by its cell.
    """

    built: BuiltEngine
    tokenizer: Tokenizer
    template: ChatTemplate
    draw_seed: Callable[[], int]
    """For requests without a seed."""
    numbers: Iterator[int]
    """Of prompts."""
    ids: Iterator[int]
    """Of the engine's requests."""

    @property
    def sizes(self) -> EngineSizes:
        return self.built.config.sizes


class LLM:
    """A model in this process. ``close`` it, or use ``with``.

    Calls from several threads wait for each other, in the order in which they came. An exception
    that arrives meanwhile, such as KeyboardInterrupt, ends its own call alone. A child of fork
    cannot use it.

    ``options`` are those of ``EngineOptions``. Arguments of vLLM that mean nothing here are
    accepted with a warning, which is logged and kept in ``warnings``. The seeds of requests without
    one are drawn from the option ``seed``, so that a script gives the same answers every time.
    """

    def __init__(self, model: str | None = None, **options: object) -> None:
        """``model``: a GGUF file or Hugging Face folder; without it the default model is fetched.

        Raises ModelError and ConfigError, and TypeError for an unknown option.
        """
        engine_options, warnings = split(model, options)
        loaded = load_model(engine_options.model)
        tokenizer = load_tokenizer(loaded.source)
        template = ChatTemplate(loaded.source, tokenizer)
        built = build_engine(engine_options, loaded=loaded)
        self.warnings = (*warnings, *built.config.warnings)
        for warning in self.warnings:
            _log.warning(warning)
        seeds = seeds_from(built.config.seed or 0)
        self._open: _Open | None = _Open(built, tokenizer, template, seeds, count(), count())
        self._turns = Turns("kvasir-llm")
        weakref.finalize(self, self._turns.end)

    def generate(
        self,
        prompts: object,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt; results in the order of the prompts.

        ``prompts``: a text, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or
        a list of these. ``sampling_params``: one for all, one per prompt, or vLLM's defaults.
        ``use_tqdm`` shows a progress bar. ``priority``: one number per prompt; lower ones go
        earlier. Raises RequestError before anything runs when a prompt or
        parameter is invalid; a prompt that fails while it runs has the finish reason "error".
        """
        read = read_prompts(prompts, self._has().tokenizer)
        return self._run(read, sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: object,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or each of a list of them, with the model's chat template.

        Messages are those that the server takes; a field that is ignored is logged. ``tools`` and
        ``chat_template_kwargs`` reach the template. Otherwise as ``generate``.
        """
        template = self._has().template
        conversations, warnings = read_conversations(messages)
        for warning in warnings:
            _log.warning(warning)
        variables = {**(chat_template_kwargs or {}), **({"tools": tools} if tools else {})}
        prompts = [
            Prompt(
                tuple(template.encode(conversation, add_generation_prompt, **variables)),
                template.render(conversation, add_generation_prompt, **variables),
                name="messages",
            )
            for conversation in conversations
        ]
        return self._run(prompts, sampling_params, use_tqdm)

    def beam_search(self, prompts: object, params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt that ``params.beam_width`` beams find.

        ``prompts`` as for ``generate``. Raises RequestError before anything runs when a prompt or
        parameter is invalid, KvasirError when a beam fails while it runs.
        """
        params.check()
        read = read_prompts(prompts, self._has().tokenizer)

        def work(turn: Turn[list[BeamSearchOutput]]) -> list[BeamSearchOutput]:
            has = self._has()
            searches = list(map(partial(_search, has, params), read))
            BeamSearch(has.built.engine, has.ids, turn.check).run(searches)
            return list(map(partial(_beams, has.tokenizer), searches))

        return self._turns.call(work)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode`` and ``decode``."""
        return self._has().tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached KV blocks; True as in vLLM, where it may be refused."""
        self._turns.call(lambda _: self._has().built.engine.reset_prefix_cache())
        return True

    def close(self) -> None:
        """Gives memory and threads back, after the calls that wait. Closing again does nothing, and
        neither does closing in a child of fork."""
        if not self._turns.is_here:
            return
        if self._open is not None:
            self._turns.call(self._close)
        self._turns.end()

    def _close(self, _: Turn[None]) -> None:
        has, self._open = self._open, None
        if has is not None:
            has.built.engine.close()
            del has
            gc.collect()  # templates and progress bars go round in circles
            trim()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _has(self) -> _Open:
        if self._open is None:
            raise closed()
        return self._open

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params,
        shows_progress: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        params = _one_each(sampling_params, len(prompts))
        priorities = check_priorities(priority, len(prompts))

        def work(turn: Turn[list[RequestOutput]]) -> list[RequestOutput]:
            has = self._has()
            tasks = list(map(partial(_task, has), prompts, params, priorities))
            batch = Batch(has.built.engine, has.tokenizer, tasks, has.ids)
            return batch.run(shows_progress, turn.check)

        return self._turns.call(work)


def _search(has: _Open, params: BeamSearchParams, prompt: Prompt) -> Search:
    _check_prompt(has, prompt)
    room = has.sizes.max_model_len
    check_room(len(prompt.ids), params.max_tokens, room, Names(prompt=prompt.name))
    return Search(tuple(prompt.ids), params, has.tokenizer.eos_ids, prompt.context)


def _beams(tokenizer: Tokenizer, search: Search) -> BeamSearchOutput:
    return BeamSearchOutput([_sequence(tokenizer, search, beam) for beam in search.best()])


def _sequence(tokenizer: Tokenizer, search: Search, beam: Beam) -> BeamSearchSequence:
    tokens = [*search.prompt, *beam.tokens]
    reason = "stop" if beam.is_ended else "length"
    return BeamSearchSequence(tokens, tokenizer.decode(tokens), beam.cum_logprob, reason)


def _task(has: _Open, prompt: Prompt, params: SamplingParams, priority: int) -> Task:
    sizes = has.sizes
    if params.seed is None:
        params = msgspec.structs.replace(params, seed=has.draw_seed())
    _check_prompt(has, prompt)
    choices = resolve_choices(
        params,
        vocab_size=sizes.vocab_size,
        max_model_len=sizes.max_model_len,
        n_prompt=len(prompt.ids),
        eos_ids=has.tokenizer.eos_ids,
        names=Names(prompt=prompt.name),
    )
    return Task(next(has.numbers), prompt, params, choices, priority)


def _check_prompt(has: _Open, prompt: Prompt) -> None:
    sizes, name = has.sizes, prompt.name
    check_prompt(
        prompt.ids, vocab_size=sizes.vocab_size, max_model_len=sizes.max_model_len, name=name
    )


def _one_each(params: Params, n_prompts: int) -> list[SamplingParams]:
    if isinstance(params, Mapping):
        raise RequestError(
            f"sampling_params is a dict: write {_as_params(params)}", param="sampling_params"
        )
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n_prompts
    many = _all_params(params if isinstance(params, Iterable) else [params])
    if len(many) != n_prompts:
        raise RequestError(
            f"{len(many)} sampling_params for {n_prompts} prompts: give one, or one per prompt",
            param="sampling_params",
        )
    return many


def _all_params(params: Iterable[object]) -> list[SamplingParams]:
    many: list[SamplingParams] = []
    for item in params:
        if not isinstance(item, SamplingParams):
            hint = f": write {_as_params(item)}" if isinstance(item, Mapping) else ""
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(item).__name__}{hint}",
                param="sampling_params",
            )
        many.append(item)
    return many


def _as_params(values: Mapping[object, object]) -> str:
    """As one would have to write them."""
    return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in values.items())})"
