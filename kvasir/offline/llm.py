"""The offline engine: ``LLM(...).generate(...)`` with vLLM's arguments and results."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from weakref import WeakMethod

from kvasir.checkpoints.loaded import load_model
from kvasir.config.heap import trim
from kvasir.config.pixels import pixel_bounds
from kvasir.engine.build import build_engine
from kvasir.offline.arguments import split
from kvasir.offline.batch import Batch
from kvasir.offline.beams import BeamSearch
from kvasir.offline.opened import Opened, check_ids
from kvasir.offline.outputs import BeamSearchOutput, RequestOutput, beams_of
from kvasir.offline.params import Params, one_each
from kvasir.offline.prompts import Prompt, Talk, read_conversations, read_prompts
from kvasir.offline.session import Session
from kvasir.offline.tasks import check_writes, new_task, notes_on
from kvasir.offline.turns import QueuedCall, Turns
from kvasir.offline.vectors import VectorCalls
from kvasir.text.beam import BeamSearchParams, Search
from kvasir.text.heads import Heads
from kvasir.text.prediction import read_predictions
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.names import Names
from kvasir.validation.params import check_room
from kvasir.validation.seeds import seeds_from
from kvasir.validation.standing import check_priorities
from kvasir.vision.eye import Eye
from kvasir.vision.sight import sight_of

_log = logging.getLogger(__name__)


class LLM(VectorCalls):
    """A model in this process. ``close`` it, or use ``with``.

    Calls from several threads wait for each other, in the order in which they came. An exception
    that arrives meanwhile, such as KeyboardInterrupt, ends its own call alone. A child of fork
    cannot use it.

    ``options`` are those of ``EngineOptions``. Arguments of vLLM that mean nothing here are
    accepted with a warning, which is logged and kept in ``warnings``. The seeds of requests without
    one are drawn from the option ``seed``, so that a script gives the same answers every time.
    """

    def __init__(self, model: str | None = None, **options: object) -> None:
        """``model``: a GGUF file, a Hugging Face folder, or a name of the library; without it the
        default model is fetched.

        Raises ModelError and ConfigError, and TypeError for an unknown option.
        """
        engine_options, warnings = split(model, options)
        loaded = load_model(engine_options.model, engine_options.mmproj)
        tokenizer = load_tokenizer(loaded.source)
        bounds = pixel_bounds(engine_options.mm_processor_kwargs)
        eye = Eye(sight_of(loaded.source, tokenizer, bounds))
        template = ChatTemplate(loaded.source, tokenizer, eye.spelling)
        built = build_engine(engine_options, loaded=loaded)
        self.warnings = (*warnings, *built.config.warnings)
        for warning in self.warnings:
            _log.warning(warning)
        seeds = seeds_from(built.config.seed or 0)
        self._open: Opened | None = Opened(
            built,
            tokenizer,
            template,
            seeds,
            count(),
            count(),
            Heads(loaded.source),
            eye,
        )
        self._turns = Turns("kvasir-llm")
        self._session = Session(self._turns, WeakMethod(self._has))
        weakref.finalize(self, self._turns.end)

    def generate(
        self,
        prompts: object,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
        prediction: object = None,
    ) -> list[RequestOutput]:
        """Continues each prompt; results in the order of the prompts.

        ``prompts``: a text, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or
        a list of these. A mapping may have "multi_modal_data": {"image": an image of Pillow's, a
        path, or a list of them}, for each of which the prompt has a placeholder of the model's.
        ``sampling_params``: one for all, one per prompt, or vLLM's defaults.
        ``use_tqdm`` shows a progress bar. ``priority``: one number per prompt; lower ones go
        earlier. ``prediction``: what much of the answer is expected to repeat, a text or OpenAI's
        object for all prompts, or a list with one (or None) for each; engines that look texts up
        draft from it. Raises RequestError before anything runs when a prompt or
        parameter is invalid; a prompt that fails while it runs has the finish reason "error".
        """
        read = self._read(prompts)
        return self._run(read, sampling_params, use_tqdm, priority, prediction)

    def chat(
        self,
        messages: object,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        prediction: object = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or each of a list of them, with the model's chat template, or
        goes on with its last message.

        Messages are those that the server takes, images as data URIs among them, and parts of type
        "image_pil" with an image of Pillow's in that field; a field that is ignored is logged.
        ``tools`` and ``chat_template_kwargs`` reach the template. Otherwise as ``generate``.
        """
        has = self._has()
        talks, warnings = read_conversations(messages)
        for warning in warnings:
            _log.warning(warning)
        variables = {**(chat_template_kwargs or {}), **({"tools": tools} if tools else {})}
        continues = continue_final_message
        adds = add_generation_prompt and not continues
        prompts = [_told(has, talk, adds, continues, variables) for talk in talks]
        return self._run(prompts, sampling_params, use_tqdm, prediction=prediction)

    def beam_search(self, prompts: object, params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt that ``params.beam_width`` beams find.

        ``prompts`` as for ``generate``. Raises RequestError before anything runs when a prompt or
        parameter is invalid, KvasirError when a beam fails while it runs.
        """
        params.check()
        read = self._read(prompts)

        def work(turn: QueuedCall[list[BeamSearchOutput]]) -> list[BeamSearchOutput]:
            has = self._has()
            searches = list(map(partial(_search, has, params), read))
            BeamSearch(has.built.engine, has.ids, turn.check).run(searches)
            return list(map(partial(beams_of, has.tokenizer), searches))

        return self._turns.call(work)

    def session(self) -> Session:
        """Requests that come and go while others run; for programs that do not know them all
        beforehand."""
        return self._session

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode`` and ``decode``."""
        return self._has().tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached KV blocks; True as in vLLM, where it may be refused."""
        self._turns.call(lambda _: self._has().built.engine.reset_prefix_cache())
        return True

    def reset_mm_cache(self) -> None:
        """Forgets the rows that towers made of images; cached KV blocks stay."""
        self._turns.call(lambda _: self._has().built.engine.reset_mm_cache())

    def close(self) -> None:
        """Gives memory and threads back, after the calls that wait. Closing again does nothing, and
        neither does closing in a child of fork."""
        if not self._turns.is_here:
            return
        if self._open is not None:
            self._turns.call(self._close)
        self._turns.end()

    def _close(self, _: QueuedCall[None]) -> None:
        has, self._open = self._open, None
        if has is not None:
            has.built.engine.close()
            del has
            gc.collect()  # templates and progress bars go round in circles
            trim()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, prompts: object) -> list[Prompt]:
        has = self._has()
        return read_prompts(prompts, has.tokenizer, has.eye)

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params,
        shows_progress: bool,
        priority: Sequence[int] | None = None,
        prediction: object = None,
    ) -> list[RequestOutput]:
        params = one_each(sampling_params, len(prompts))
        priorities = check_priorities(priority, len(prompts))
        texts = read_predictions(prediction, len(prompts))

        def work(turn: QueuedCall[list[RequestOutput]]) -> list[RequestOutput]:
            has = self._has()
            tasks = list(map(partial(new_task, has), prompts, params, priorities, texts))
            for note in notes_on(has, tasks, texts):
                _log.warning(note)
            batch = Batch(has.built.engine, has.tokenizer, tasks, has.ids)
            return batch.run(shows_progress, turn.check)

        return self._turns.call(work)


def _search(has: Opened, params: BeamSearchParams, prompt: Prompt) -> Search:
    check_writes(has)
    check_ids(has, prompt)
    room = has.sizes.max_model_len
    check_room(len(prompt.ids), params.max_tokens, room, Names(prompt=prompt.name))
    return Search(
        tuple(prompt.ids), params, has.tokenizer.eos_ids, prompt.context, media=prompt.media
    )


def _told(
    has: Opened, talk: Talk, adds: bool, continues: bool, variables: Mapping[str, object]
) -> Prompt:
    """The prompt that a conversation is."""
    text = has.template.render(talk.messages, adds, continues, **variables)
    ids = has.template.encode(talk.messages, adds, continues, **variables)
    seen = has.eye.expand(ids, talk.images, "images")
    return Prompt(seen.ids, text, name="messages", media=seen.media)
