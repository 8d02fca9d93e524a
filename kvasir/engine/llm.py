"""The offline engine: ``LLM(...).generate(...)`` with vLLM's arguments and results."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import SamplingParams, TokenParams
from kvasir.engine.arguments import split
from kvasir.engine.batch import Batch, Task
from kvasir.engine.beam import Beam, BeamSearch, BeamSearchParams, Search
from kvasir.engine.build import build_engine, load_model
from kvasir.engine.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from kvasir.engine.prompts import Prompt, read_conversations, read_prompts
from kvasir.sampling.names import Names
from kvasir.sampling.philox import seeds_from
from kvasir.sampling.standing import check_priorities
from kvasir.sampling.validate import check_prompt, check_room, resolve_choices
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model in this process. One call at a time; ``close`` it, or use ``with``.

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
        self._tokenizer = load_tokenizer(loaded.source)
        self._template = ChatTemplate(loaded.source, self._tokenizer)
        self._built = build_engine(engine_options, loaded=loaded)
        self.warnings = (*warnings, *self._built.config.warnings)
        for warning in self.warnings:
            _log.warning(warning)
        self._draw_seed = seeds_from(self._built.config.seed or 0)
        self._n_requests = 0
        self._engine_ids = itertools.count()
        self._is_closed = False

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
        read = read_prompts(prompts, self._tokenizer)
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
        conversations, warnings = read_conversations(messages)
        for warning in warnings:
            _log.warning(warning)
        variables = {**(chat_template_kwargs or {}), **({"tools": tools} if tools else {})}
        prompts = [
            Prompt(
                tuple(self._template.encode(conversation, add_generation_prompt, **variables)),
                self._template.render(conversation, add_generation_prompt, **variables),
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
        self._check_open()
        params.check()
        spec = self._built.executor.spec
        searches = []
        for prompt in read_prompts(prompts, self._tokenizer):
            self._check_prompt(prompt)
            names = Names(prompt=prompt.name)
            check_room(len(prompt.ids), params.max_tokens, spec.max_model_len, names)
            eos_ids = self._tokenizer.eos_ids
            searches.append(Search(tuple(prompt.ids), params, eos_ids, prompt.cache_salt))
        BeamSearch(self._built.engine, self._engine_ids).run(searches)
        return [
            BeamSearchOutput([self._sequence(search, beam) for beam in search.best()])
            for search in searches
        ]

    def _sequence(self, search: Search, beam: Beam) -> BeamSearchSequence:
        tokens = [*search.prompt, *beam.tokens]
        reason = "stop" if beam.is_ended else "length"
        text = self._tokenizer.decode(tokens)
        return BeamSearchSequence(tokens, text, beam.cum_logprob, reason)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode`` and ``decode``."""
        return self._tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached KV blocks; True as in vLLM, where it may be refused."""
        self._built.engine.reset_prefix_cache()
        return True

    def close(self) -> None:
        """Gives memory and threads back. Closing again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._built.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params,
        shows_progress: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        self._check_open()
        params = _one_each(sampling_params, len(prompts))
        priorities = check_priorities(priority, len(prompts))
        tasks = [self._task(*each) for each in zip(prompts, params, priorities, strict=True)]
        batch = Batch(self._built.engine, self._tokenizer, tasks, self._engine_ids)
        return batch.run(shows_progress)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("this LLM is closed: create a new one")

    def _task(self, prompt: Prompt, params: SamplingParams, priority: int) -> Task:
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._draw_seed())
        choices = self._resolve(prompt, params)
        task = Task(self._n_requests, prompt, params, choices, priority)
        self._n_requests += 1
        return task

    def _check_prompt(self, prompt: Prompt) -> None:
        spec = self._built.executor.spec
        check_prompt(
            prompt.ids,
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_model_len,
            name=prompt.name,
        )

    def _resolve(self, prompt: Prompt, params: SamplingParams) -> tuple[TokenParams, ...]:
        spec = self._built.executor.spec
        self._check_prompt(prompt)
        return resolve_choices(
            params,
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_model_len,
            n_prompt=len(prompt.ids),
            eos_ids=self._tokenizer.eos_ids,
            names=Names(prompt=prompt.name),
        )


def _one_each(params: Params, n_prompts: int) -> list[SamplingParams]:
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
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(item).__name__}",
                param="sampling_params",
            )
        many.append(item)
    return many
