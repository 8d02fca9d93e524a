"""From what was asked to the resolved request: prompts as ids, parameters resolved, every bound
checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec import structs

from kvasir import __version__
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.params import DRAWS, TokenParams
from kvasir.core.request import PLAIN, Context, Standing
from kvasir.core.tiles import Media
from kvasir.grammar.constraint import FREE, Constraint
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.thinking import grammar_in
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.answer_size import answer_limit, check_answer
from kvasir.serve.asked import Asked
from kvasir.serve.conversation import ConversationReader
from kvasir.serve.echo import read_echoes
from kvasir.serve.fetch import ImageFetcher
from kvasir.serve.images import ImageReader
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.pool import PoolReading
from kvasir.serve.predicted import read_predicted
from kvasir.serve.prompt_room import check_count, readable, room_of, shortened
from kvasir.serve.protocol.thinking import known_variables
from kvasir.serve.resolved import Ids, Job, Resolved
from kvasir.serve.salt import block_salt
from kvasir.serve.seen import SeenPrompt, see
from kvasir.serve.slices import Slices, Work
from kvasir.serve.text import TextModel
from kvasir.serve.thinking import with_limit
from kvasir.serve.tools import Chat, keyed
from kvasir.serve.trial import AskedCompiler
from kvasir.toolcalls.reading import Reading, Thoughts
from kvasir.validation.names import Names
from kvasir.validation.params import (
    check,
    check_prompt,
    n_choices,
    other_prompt,
    resolve_params,
)
from kvasir.validation.restrict import spelling
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.speculative import beam_notes, check_method, rule_notes, speculative_notes
from kvasir.validation.standing import after

DrawSeed = Callable[[], int]


class Server(msgspec.Struct, frozen=True):
    """What requests are read with."""

    text: TextModel
    info: Ready
    limits: AdmissionLimits
    slices: Slices
    draw: DrawSeed
    """Seeds of requests without one."""
    max_answer_logprobs: int
    """Of one answer, where one full context has fewer."""
    compiler: AskedCompiler
    """Of grammars."""
    context: Context = PLAIN
    """The model's; a request adds its salt."""
    caller: Caller = ANYONE
    tool_format: str = "auto"
    """How the model writes calls; "auto": as its chat template does."""
    thoughts: Thoughts = "apart"
    """Where reasoning is told to who does not say."""
    grammar_limits: GrammarLimits = LIMITS
    shares_prefixes: bool = False
    """With other keys, where the salts are equal."""
    images: ImageReader = msgspec.field(default_factory=ImageReader)
    max_images: int = 0
    """Of one request."""
    fetcher: ImageFetcher = msgspec.field(default_factory=ImageFetcher)
    """Of images that have addresses."""


async def resolve_request(asked: Asked, server: Server, model: str, arrived: float) -> Resolved:
    """The request for ``model``, as the client calls it. Each prompt of a request without a seed
    has one of its own. Its time limits count from ``arrived``. Raises RequestError (400)."""
    params, names = asked.params, asked.names
    room = room_of(asked, server.info)
    _check_before_tokenizing(params, server.info, room, names)
    server.caller.check_class(asked.standing.priority_class)
    _check_writes(asked, server.info)
    pool, grammar, reading, found = None, FREE, None, ReadPrompts()
    if asked.pool is None:
        found = await prompts_of(asked, server)
        prompts = found.ids
        reading = await _reading(asked, server, prompts[0])
        grammar = await _constraint(asked, server, reading)
        tokens = await server.slices.run(
            _resolved(prompts, params, server, room, names, grammar.text)
        )
    else:
        pooled = PoolReading(asked, asked.pool, server.text, server.info, room)
        pool = await pooled.run(server.limits, server.slices)
        prompts, tokens = pool.prompts, pool.params
    standing, context = _standing(asked, server, arrived), _context(asked, server)
    vector = (None, ()) if pool is None else (pool.kind, pool.head, pool.seconds)
    job = Job(prompts, params, tokens, context, standing, asked.length_penalty, *vector)
    if reading is not None:
        job = structs.replace(job, reading=keyed(reading, prompts, tokens))
    begin = _start_in(prompts, asked.scores_from)
    job = structs.replace(job, early_stopping=asked.early_stopping, scores_from=begin)
    predicted = await read_predicted(asked.prediction, server.text, server.info, tokens[0])
    job = structs.replace(job, media=found.media, prediction=predicted.ids)
    job = _in_turns(_with_best(job), server.info)
    _check_size(asked, job, server)
    return Resolved(
        dialect=asked.dialect,
        model=model,
        fingerprint=fingerprint(server.info),
        job=job,
        stream=asked.stream,
        stream_interval=asked.stream_interval,
        ping=asked.ping,
        echoes=await read_echoes(asked, prompts, server.text.tokenizer),
        warnings=(
            *_warnings(asked, server),
            *grammar.warnings,
            *predicted.warnings,
            *(pool.warnings if pool else _rule_notes(job, server.info)),
        ),
        show=asked.show if pool is None else {**asked.show, **pool.show},
        images=found.images,
    )


def _warnings(asked: Asked, server: Server) -> list[str]:
    """Of fields."""
    return [
        *asked.warnings,
        *known_variables(asked.variables, server.text.template.all_text)[1],
        *speculative_notes(asked.params.speculative, server.info.drafter),
    ]


def _rule_notes(job: Job, info: Ready) -> tuple[str, ...]:
    if job.length_penalty is not None:
        return beam_notes(info.drafter)
    return rule_notes(job.resolved[0], follows_drafts=info.follows_drafts)


def _check_size(asked: Asked, job: Job, server: Server) -> None:
    """Of an answer that is held as a whole. Raises RequestError (400)."""
    limit = answer_limit(server.max_answer_logprobs, server.info.max_model_len)
    is_stored = asked.keep is not None and asked.keep.is_stored
    streams = asked.stream and not asked.gathers and not is_stored
    check_answer(job, limit, echoes=asked.echoes, streams=streams, names=asked.names)


def _in_turns(job: Job, info: Ready) -> Job:
    """With more choices than the engine computes together: the last would be told with the first
    only when most have ended."""
    if job.n_choices <= info.max_num_seqs:
        return job
    return structs.replace(job, n_told_at_once=info.max_num_seqs)


def _with_best(job: Job) -> Job:
    """Where more choices are computed than are told."""
    params = job.params
    if n_choices(params) <= params.n:
        return job
    return structs.replace(
        job, params=structs.replace(params, n=n_choices(params)), n_best=params.n
    )


def _context(asked: Asked, server: Server) -> Context:
    """The model's, with the salt of the request."""
    return structs.replace(server.context, salt=_salt(asked, server))


def _start_in(prompts: Sequence[Ids], start: int) -> int:
    """Raises RequestError (400) where a prompt ends before it."""
    shortest = min(map(len, prompts), default=0)
    if start and start >= shortest:
        name = "prompt_logprobs_start"
        raise RequestError(f"{name} is {start}, and a prompt has {shortest} tokens", param=name)
    return start


def _standing(asked: Asked, server: Server, arrived: float) -> Standing:
    key_id = server.caller.key_id
    return structs.replace(
        asked.standing,
        tenant=key_id or asked.standing.tenant,
        user=asked.standing.tenant if key_id else "",
        ttft_by=after(arrived, asked.params.ttft_ms),
        answer_by=after(arrived, asked.params.deadline_ms),
    )


def owner_of(asked: Asked, server: Server) -> str:
    """Who takes turns with others."""
    return server.caller.key_id or asked.standing.tenant


def _salt(asked: Asked, server: Server) -> str:
    return block_salt("" if server.shares_prefixes else server.caller.key_id, asked.salt)


def _check_writes(asked: Asked, info: Ready) -> None:
    if asked.pool is None and not info.vectors.writes:
        raise RequestError(
            "this model makes vectors or labels of texts and writes none: use /v1/embeddings or "
            "/v1/classify",
            param="model",
        )


def fingerprint(info: Ready) -> str:
    """Equal fingerprints, seeds and requests give equal answers, unless it says that sampled ones
    follow drafts."""
    rule = ":by-drafts" if info.follows_drafts else ""
    return f"kvasir-{__version__}-{info.numerics_id}:draws-{DRAWS}{rule}"


def _check_before_tokenizing(params: SamplingParams, info: Ready, room: int, names: Names) -> None:
    """A request that fails whatever its prompt costs no tokenization."""
    check(
        params,
        vocab_size=info.vocab_size,
        max_model_len=room,
        n_prompt=0,
        names=names,
    )
    check_method(params.speculative, info.drafter)


async def _reading(asked: Asked, server: Server, prompt: Ids) -> Reading | None:
    """How the answer is read. Raises RequestError (400)."""
    if asked.length_penalty is not None:
        if asked.tools is not None:
            raise RequestError("tools do not go together with use_beam_search", param="tools")
        return None
    if not asked.tells_pieces or server.text.template.problem:
        return None
    reading = await _chat(asked, server).reading(prompt)
    if reading is None:
        return None
    return structs.replace(reading, thoughts=asked.thoughts or server.thoughts)


def _chat(asked: Asked, server: Server) -> Chat:
    begun = asked.messages[-1].content if asked.continues_last else ""
    limits = server.grammar_limits
    return Chat(server.text, server.tool_format, asked.tools, asked.params, limits, begun)


async def _constraint(asked: Asked, server: Server, reading: Reading | None) -> Constraint:
    """What the answer must keep to, which compiles. Raises RequestError (400)."""
    params, chat = asked.params, _chat(asked, server)
    owner = owner_of(asked, server)
    judge = partial(server.compiler.check, n_ids=server.info.vocab_size, owner=owner)
    grammar = await chat.constraint(reading)
    if grammar.text:
        try:
            await judge(grammar)
        except RequestError as refusal:
            grammar = await chat.loosened(reading, judge, refusal)
            await judge(grammar)
    if params.ignore_eos or params.min_tokens:
        grammar = structs.replace(grammar, warnings=(*grammar.warnings, *_ends(asked)))
    return with_limit(grammar, asked.thinking, server.text, reading)


def _ends(asked: Asked) -> Iterator[str]:
    """Where an answer ends that is to go on."""
    late = "before min_tokens and ignore_eos"
    if asked.params.structured_outputs is not None:
        yield f"where the structure of an answer ends, it ends, {late}"
    elif asked.tools is not None and asked.tools.choice != "none":
        yield f"where nothing can follow a call, the answer ends, {late}"


class ReadPrompts(msgspec.Struct, frozen=True):
    ids: tuple[Ids, ...] = ()
    media: tuple[Media, ...] = ()
    """What tokens of the one prompt stand for."""
    images: tuple[str, ...] = ()
    """As in ``Resolved``."""


async def prompts_of(asked: Asked, server: Server) -> ReadPrompts:
    """Ids of what is asked, in the model's own form and as far as they are not truncated. Raises
    RequestError (400)."""
    whole = await _whole_prompts(asked, server)
    return structs.replace(whole, ids=tuple(shortened(x, asked, server.info) for x in whole.ids))


async def _whole_prompts(asked: Asked, server: Server) -> ReadPrompts:
    text, limits, n = server.text, server.limits, n_choices(asked.params)
    limit = readable(asked, server.info)
    if asked.messages and not (asked.prompts and text.template.problem):
        limits.check(1, n)
        found = await _conversation(asked, server, limit)
        return ReadPrompts(((*asked.before, *found.ids),), found.media, found.images)
    check_count(asked.prompts, limit, limits)
    limits.check(len(asked.prompts), n)
    special, name = asked.add_special, asked.names.prompt
    read = await text.read_many(
        asked.prompts, server.slices, add_special=special, limit=limit, param=name
    )
    return ReadPrompts(tuple(read))


async def _conversation(asked: Asked, server: Server, limit: int) -> SeenPrompt:
    text, owner = server.text, owner_of(asked, server)
    seen = await see(asked, text.sight, server.images, server.max_images, owner)
    room = room_of(asked, server.info)
    return await ConversationReader(asked, text, seen, server.tool_format, limit, room).read()


def _resolved(
    prompts: tuple[Ids, ...],
    params: SamplingParams,
    server: Server,
    room: int,
    names: Names,
    constraint: str,
) -> Work[tuple[TokenParams, ...]]:
    """Checks every prompt; what does not depend on it is resolved once."""
    sizes = {"vocab_size": server.info.vocab_size, "max_model_len": room}
    for prompt in prompts:
        check_prompt(prompt, **sizes, name=names.prompt)
        yield
    server.limits.check(len(prompts), n_choices(params), sum(map(len, prompts)))
    draw = server.draw
    encode = partial(server.text.tokenizer.encode, add_special=False)
    spelled = yield from spelling(params.bad_words or (), encode)
    first = resolve_params(
        params if params.seed is not None else structs.replace(params, seed=draw()),
        vocab_size=server.info.vocab_size,
        max_model_len=room,
        n_prompt=len(prompts[0]),
        eos_ids=server.text.tokenizer.eos_ids,
        names=names,
        constraint=grammar_in(constraint),
        encode=spelled.__getitem__,
    )
    resolved = [first]
    for prompt in prompts[1:]:
        seed, length = first.seed if params.seed is not None else draw(), len(prompt)
        own = other_prompt(
            first,
            params,
            seed=seed,
            n_prompt=length,
            max_model_len=room,
            names=names,
        )
        resolved.append(own)
        yield
    return tuple(structs.replace(one, constraint=constraint) for one in resolved)
