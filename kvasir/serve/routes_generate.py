"""Routes that take a request of some dialect and answer it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

from msgspec import structs

from kvasir.config.serving import ServeOptions, image_limit
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.limits import GrammarLimits
from kvasir.serve.addressed import fetch_images
from kvasir.serve.answer import Dialect
from kvasir.serve.asked import Asked, Keep, LoadWish, Prompt
from kvasir.serve.chats import begin_chat
from kvasir.serve.client import AsyncClient
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.endpoint import Handler
from kvasir.serve.exchange import Exchange
from kvasir.serve.jobs import Server, owner_of, prompts_of, resolve_request
from kvasir.serve.keys.caller import Caller
from kvasir.serve.loading import load
from kvasir.serve.pieces import Mixed
from kvasir.serve.protocol.thinking import FORMATS as REASONING_FORMATS
from kvasir.serve.resolved import Json, Resolved
from kvasir.serve.run import AnswerRun, Batch
from kvasir.serve.served import Served
from kvasir.serve.service import Model, Service
from kvasir.serve.sessions import Ran
from kvasir.serve.state.kept import Kept
from kvasir.serve.stored import NOTHING_SAID, SaidBefore, Storing, continued, defer
from kvasir.serve.trial import AskedCompiler
from kvasir.serve.wanted import Size
from kvasir.validation.params import n_choices
from kvasir.validation.warn import warned


def generate(dialect: Dialect) -> Handler:
    """The handler of a path that speaks ``dialect``."""

    async def handle(service: Service, exchange: Exchange) -> None:
        path = exchange.path_params

        def read(body: Json) -> Asked | LoadWish:
            strict, said = service.options.strict, {**body, **path}
            wish = dialect.read_load(said, strict=strict) if dialect.read_load else None
            return wish or dialect.read(said, strict=strict)

        async with exchange.reading(read, dialect.media) as asked:
            find = service.check_model if dialect.needs_model else service.model_of
            model = find(asked.model)
            exchange.note({"model": model.name})
            if isinstance(asked, LoadWish):
                return await exchange.send_json(await load(service, model, asked))
            server = await server_of(service, model, exchange.caller)
            _check_place(asked, server, model.client)
            with service.bodies.body() as body:
                asked = await fetch_images(asked, server, body, exchange.aside)
                asked, story = await continued(service, service.owner(exchange), asked)
                try:
                    resolved = await resolve_request(asked, server, model.name, exchange.arrived)
                except UnsupportedSchema as error:
                    model.metrics.refused(error.keyword)
                    raise
        owner, session = service.owner(exchange), asked.session
        if session:
            service.sessions.check(owner, session, _n_chars(asked))
        async with service.sessions.turn(owner, session, exchange):
            more = (asked.keep, story, session)
            await answer(service, exchange, model, server, resolved, *more)

    return handle


def _check_place(asked: Asked, server: Server, client: AsyncClient) -> None:
    """What there is no place for is refused before its prompts are read, checked and tokenized,
    which takes more time of the CPUs than to refuse it. Raises CapacityError, EngineDown."""
    is_late = asked.keep is not None and asked.keep.is_background
    if is_late or asked.pool is not None or asked.length_penalty is not None:
        return  # of some other size, or for later
    n_prompts, n = max(1, len(asked.prompts)), n_choices(asked.params)
    if n_prompts * n <= server.limits.n_choices:  # else it is too large at any time
        standing = structs.replace(asked.standing, tenant=owner_of(asked, server))
        client.admit(Size(n_prompts, n, 0, standing))


@asynccontextmanager
async def _reading(
    dialect: Dialect, service: Service, exchange: Exchange
) -> AsyncIterator[tuple[Asked, Server]]:
    """What a client asks for, and what it is resolved with; others wait meanwhile, as in
    ``Exchange.reading``."""

    def read(body: Json) -> Asked:
        return dialect.read(body, strict=service.options.strict)

    async with exchange.reading(read) as asked:
        model = service.check_model(asked.model)
        server = await server_of(service, model, exchange.caller)
        with service.bodies.body() as body:
            yield await fetch_images(asked, server, body, exchange.aside), server


def count(dialect: Dialect) -> Handler:
    """The handler of a path that counts the tokens of what ``dialect`` reads."""

    async def handle(service: Service, exchange: Exchange) -> None:
        async with _reading(dialect, service, exchange) as (asked, server):
            asked, _ = await continued(service, service.owner(exchange), asked)
            (prompt,) = (await prompts_of(asked, server)).ids
        found = {"object": "response.input_tokens", "input_tokens": len(prompt)}
        await exchange.send_json({**found, **warned(asked.warnings)})

    return handle


def render(dialect: Dialect) -> Handler:
    """The handler of a path that says what the model would see of what ``dialect`` reads."""

    async def handle(service: Service, exchange: Exchange) -> None:
        async with _reading(dialect, service, exchange) as (asked, server):
            prompts = (await prompts_of(asked, server)).ids
        decode = partial(server.text.tokenizer.decode, skip_special=False)
        texts = await asyncio.to_thread(lambda: [decode(prompt) for prompt in prompts])
        found: Json = {"object": "render", "prompt_token_ids": prompts, "prompts": texts}
        found["max_model_len"] = server.info.max_model_len
        await exchange.send_json({**found, **warned(asked.warnings)})

    return handle


def _n_chars(asked: Asked) -> int:
    """Of its longest prompt, in which an id counts as one."""
    said = sum(len(message.content) for message in asked.messages)
    return max(said, *map(_size, asked.prompts), 0)


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, Mixed):
        return sum(len(part) if isinstance(part, str) else 1 for part in prompt.parts)
    return len(prompt)


async def answer(
    service: Service,
    exchange: Exchange,
    model: Model,
    server: Server,
    resolved: Resolved,
    keep: Keep | None = None,
    story: SaidBefore = NOTHING_SAID,
    session: str = "",
) -> None:
    dialect, text = DIALECTS[resolved.dialect], server.text
    envelope, owner = dialect.new_envelope(), service.owner(exchange)
    if keep is not None and keep.is_background:
        return await defer(service, exchange, server, resolved, envelope, story)

    def submitted(first: int) -> None:
        n_choices = resolved.job.n_choices
        seconds = server.compiler.seconds
        began, client = exchange.arrived, model.client
        waits = client.state != "ready" or began < client.ready_at
        what = (envelope.id, first, n_choices, owner, model.root)
        due = resolved.job.standing.ttft_by
        held = any([params.constraint for params in resolved.job.resolved])
        served = Served(*what, seconds, began, waits, due, held, exchange.backpressure)
        exchange.note({"response": envelope.id})
        service.served.add(served)
        job = resolved.job
        if not job.media:  # what their tokens stand for is not in their ids
            service.prefixes.add(owner, model.root, first, job.context, began, job.prompts[0])
        service.sessions.ran(owner, session, Ran(model.root, served.ids))

    if keep is not None and keep.is_resumable:
        kept = Kept(resolved, envelope, server.info.key_root)
        said = story.messages
        return await begin_chat(service, exchange, server, kept, keep, submitted, said)
    run = AnswerRun(
        resolved,
        dialect.grammar(resolved, envelope, text.tokenizer),
        model,
        text.tokenizer,
        exchange,
        service.options.request_timeout,
        submitted,
    )
    store = None
    if keep is not None and (keep.is_stored or keep.conversation is not None):
        responses, is_stored = service.state.responses, keep.is_stored
        store = Storing(responses, owner, model.name, envelope, story, is_stored)
    await respond(run, exchange, store)


async def respond(run: AnswerRun, exchange: Exchange, store: Storing | None = None) -> None:
    """Sends the answer of a run, whole or as a stream; what ``store`` does not take is not told.
    Raises what the run raises; a stream has then begun or not, as ``exchange.started`` tells."""
    grammar = run.grammar
    if run.resolved.stream:
        batches = run.batches(exchange.outlet)
        news = batches if store is None else _stored(batches, store)
        return await exchange.send_stream(news, grammar)
    parts = await run.whole()
    if store is not None:
        await store.whole(parts)
    await exchange.send_parts(parts, grammar.media)


async def _stored(
    batches: AsyncGenerator[Batch, None], store: Storing
) -> AsyncGenerator[Batch, None]:
    async with aclosing(batches):
        async for batch in batches:
            await store.events(batch)
            yield batch


def grammar_limits(options: ServeOptions) -> GrammarLimits:
    return GrammarLimits(
        options.schema_kilobytes * 1024,
        options.schema_depth,
        options.schema_values,
        options.max_tools,
    )


async def server_of(service: Service, model: Model, caller: Caller) -> Server:
    """What requests of ``caller`` for ``model`` are resolved with."""
    text, info = await model.open()
    limits = structs.replace(model.client.limits, key=caller.limits)
    return Server(
        text,
        info,
        limits,
        model.client.slices,
        service.draw_seed,
        service.options.max_answer_logprobs,
        AskedCompiler(model.compiler),
        model.context,
        caller,
        tool_format=service.options.tool_format,
        thoughts=REASONING_FORMATS[service.options.reasoning_format],
        grammar_limits=grammar_limits(service.options),
        shares_prefixes=service.options.prefix_sharing == "all",
        images=model.images,
        max_images=image_limit(service.options.limit_mm_per_prompt),
        fetcher=service.fetcher,
    )
