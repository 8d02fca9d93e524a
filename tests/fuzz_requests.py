"""Mutated requests, each from a seed, through every validator to one living native engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError
from kvasir.core.request import EngineRequest
from kvasir.engine.build import BuiltEngine, build_engine
from kvasir.engine.loop import EngineFault
from kvasir.offline.beams import BeamSearch
from kvasir.offline.prompts import read_conversations, read_prompts
from kvasir.serve import jobs, jsonbody
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.choices import choices
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.protocol.chat import ChatRequest
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.resolved import Job
from kvasir.serve.slices import Slices
from kvasir.serve.text import TextModel, load_text
from kvasir.text.beam import BeamSearchParams, Search
from kvasir.text.choice import Choice, ChoiceFailed
from kvasir.validation.params import check_prompt, resolve_choices
from kvasir.validation.sampling import SamplingParams
from tests import tiny
from tests.fake_run import idle_compiler
from tests.fuzz_values import change_bytes, change_json, near, value

LENGTH = 64
"""Tokens of the longest request."""
CANARY_EVERY = 20
"""Cases between two looks whether the engine still says the same."""
MOST = 40
"""Choices of one job that are run; all of them are validated."""
NOW = (0.0, 5e-324, 1e-45, 1e-38, 1e-30, 1e-3, 1.0)
EDGES: dict[str, tuple[Any, ...]] = {
    "temperature": (*NOW, 100),
    "top_p": NOW[1:],
    "top_k": (-1, 0, 1, 2, 319, 320, 321, 1_000_000),
    "min_p": NOW,
    "repetition_penalty": (0.01, 1.0, 100, 1.0000001),
    "presence_penalty": (-2, 2, 1e-45),
    "frequency_penalty": (-2, 2.0, 5e-324),
    "logit_bias": ({"0": -100}, {str(i): -100 for i in range(320)}, {"319": 100, "1": 1e-45}),
    "typical_p": NOW[1:],
    "repeat_last_n": (-1, 0, 1, 2, LENGTH, 1_000_000),
    "samplers": (["temperature"], ["typ_p", "top_k", "penalties", "temperature", "min_p"]),
    "allowed_token_ids": ([0], [319], list(range(320)), [5] * 320),
    "bad_words": ([], ["e"], ["a b", "\u0000", "<|im_end|>"], ["x" * 256] * 128),
    "logprob_token_ids": ([], [0, 319, 0], list(range(128))),
    "prompt_logprobs": (0, 1, 20),
    "best_of": (1, 2, 17, 128),
    "truncate_prompt_tokens": (1, 2, LENGTH),
    "truncation_side": ("left", "right"),
    "stop_regex": ("e+", "[^a]{3}", ["(a|b)*c", ".\n"], "a{128}"),
    "stream_interval": (1, 1024),
    "return_token_ids": (True,),
    "continue_final_message": (True,),
    "add_generation_prompt": (False,),
    "early_stopping": (True,),
    "speculative": (False, True, {}, {"method": "ngram", "num_speculative_tokens": 0}),
    "prediction": ({"type": "content", "content": "a b"}, {"type": "content", "content": ""}),
    "metadata": ({}, {"a": "b" * 512}),
    "request_id": ("a", "a" * 128),
    "seed": (0, -(1 << 63), (1 << 63), (1 << 64) - 1),
    "stop": ("e", ["\x00", "\ufffd"], ["a" * 4096], [chr(i) for i in range(65, 97)]),
    "stop_token_ids": ([0, 319], list(range(128)), [5] * 128, []),
    "min_tokens": (0, 1, 3, 4, 16),
    "max_tokens": (0, 1, 2, 8, LENGTH - 1, LENGTH),
    "n": (1, 2, 17, 128),
    "logprobs": (0, 1, 20, True),
    "top_logprobs": (0, 20),
    "prompt": ([], [0], [319] * 63, [[1], [2, 3]], ["a", "b"], "a" * 60, ["x"] * 9, [1] * LENGTH),
    "priority": (-(1 << 31), 1 << 31, 0),
    "priority_class": ("realtime", "batch", "standard"),
    "service_tier": ("auto", "flex"),
    "cache_salt": ("s", "s" * 256, "\x00"),
    "user": ("u", "v"),
    "ttft_ms": (1, 86_400_000),
    "deadline_ms": (1, 86_400_000),
    "cache_ttl": (1, 86_400),
    "echo": (True,),
    "use_beam_search": (True,),
    "length_penalty": (-10, 0, 10.0),
    "ignore_eos": (True,),
    "include_stop_str_in_output": (True,),
    "add_special_tokens": (True, False),
}
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "hello there", "max_tokens": 4, "seed": 7},
    {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "seed": 1},
    {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be <|im_end|>"}]},
            {"role": "user", "content": "\u205e1 a"},
        ],
        "max_completion_tokens": 3,
        "logprobs": True,
        "top_logprobs": 3,
    },
)
FIELDS = tuple(
    dict.fromkeys(
        info.encode_name
        for kind in (CompletionRequest, ChatRequest)
        for info in msgspec.structs.fields(kind)
    )
)
CANARY = {"prompt": "the canary", "max_tokens": 6, "seed": 3, "logprobs": 3, "ignore_eos": True}


@dataclass
class Server:
    """What stands between a body and the engine."""

    built: BuiltEngine
    text: TextModel
    loop: asyncio.AbstractEventLoop
    ids: Any = field(default_factory=itertools.count)
    canary: Any = None

    def ask(self, body: bytes) -> list[object]:
        """All events of a body's answer. Raises KvasirError."""
        fields = jsonbody.parse_object(body)
        server = jobs.Server(
            self.text,
            self.built.ready(),
            AdmissionLimits(MOST, 10 * LENGTH),
            Slices(),
            lambda: 5,
            10**6,
            idle_compiler(),
        )
        asked = (CHAT if "messages" in fields else COMPLETIONS).read(fields, strict=False)
        making = jobs.resolve_request(asked, server, "m", time.monotonic())
        job = self.loop.run_until_complete(making).job
        if job.length_penalty is not None:
            return self._beams(job, job.length_penalty)
        return self.run(job)

    def _beams(self, job: Job, penalty: float) -> list[object]:
        params = BeamSearchParams(
            beam_width=job.params.n,
            max_tokens=job.resolved[0].max_tokens,
            length_penalty=penalty,
            ignore_eos=job.params.ignore_eos,
            early_stopping=job.early_stopping,
        )
        params.check()
        search = Search(job.prompts[0], params, self.text.tokenizer.eos_ids)
        BeamSearch(self.built.engine, self.ids).run([search])
        return [beam.tokens for beam in search.best()]

    def run(self, job: Job) -> list[object]:
        """Each choice's text, as a stream would show it."""
        engine = self.built.engine
        requests, feeds = [], {}
        for prompt, params in zip(job.prompts, job.resolved, strict=True):
            first = next(self.ids)
            for _ in range(1, job.params.n):
                next(self.ids)
            request = EngineRequest(
                first,
                prompt,
                params,
                job.context,
                job.standing,
                hold_seconds=float(job.params.cache_ttl or 0),
            )
            for i, choice in enumerate(choices(request, job.params.n)):
                requests.append(choice)
                feeds[choice.id] = Choice(i, self.text.tokenizer, job.params)
        engine.submit(requests)
        return self._drain(feeds)

    def _drain(self, choices: dict[int, Choice]) -> list[object]:
        found: list[object] = []
        engine = self.built.engine
        while engine.has_work:
            for event in engine.step().events:
                choice = choices[event.id]
                if choice.finished:
                    continue
                try:
                    delta = choice.feed(event)
                except ChoiceFailed as failure:
                    found.append((failure.code, failure.message))
                    choice.finished = True
                    continue
                found.append((delta.text, delta.logprobs, delta.finish))
                if choice.finished and event.finish is None:
                    engine.cancel(event.id)
        if not all(choice.finished for choice in choices.values()):
            raise AssertionError("a choice never ended")
        return found

    def offline(self, rng: random.Random) -> list[object]:
        """A request as a program writes it: no JSON has looked at its types."""
        tokenizer, info = self.text.tokenizer, self.built.ready()
        if rng.random() < 0.5:
            prompts = read_prompts(near(rng, rng.choice(EDGES["prompt"])), tokenizer)
        else:
            messages = near(rng, BODIES[3]["messages"])
            prompts = [
                read_prompts(self.text.template.encode(talk.messages), tokenizer)[0]
                for talk in read_conversations(messages)[0]
            ]
        names = rng.sample(OFFLINE, rng.randint(0, 3))
        params = SamplingParams(**{name: _odd(rng, name) for name in names})
        found: list[object] = []
        for prompt in prompts[:9]:
            bounds = {"vocab_size": info.vocab_size, "max_model_len": info.max_model_len}
            check_prompt(prompt.ids, **bounds)
            resolved = resolve_choices(
                params,
                **bounds,
                n_prompt=len(prompt.ids),
                eos_ids=tokenizer.eos_ids,
                encode=partial(tokenizer.encode, add_special=False),
            )
            found += self.run(Job((prompt.ids,), params, resolved[:1]))
        return found


OFFLINE = sorted(SamplingParams.__struct_fields__)


def _odd(rng: random.Random, name: str) -> Any:
    edges = EDGES.get(name, ())
    if edges and rng.random() < 0.6:
        edge = rng.choice(edges)
        return {int(k): v for k, v in edge.items()} if isinstance(edge, dict) else edge
    return value(rng)


@cache
def server(folder: Path) -> Server:
    path = tiny.write_gguf_model(tiny.llama(num_hidden_layers=1), folder.parent / "m.gguf", "Q8_0")
    loaded = load_model(str(path))
    options = EngineOptions(
        model=str(path),
        max_model_len=LENGTH,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        threads=1,
        kv_memory="1MiB",
        packed_cache="off",
    )
    made = Server(
        build_engine(options, loaded=loaded), load_text(loaded.source), asyncio.new_event_loop()
    )
    made.canary = made.ask(json.dumps(CANARY).encode())
    return made


def body_of(rng: random.Random) -> bytes:
    """A request's body: one of ``BODIES`` with a few fields changed."""
    fields = dict(rng.choice(BODIES))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        name, way = rng.choice(FIELDS), rng.random()
        if way < 0.55 and name in EDGES:
            fields[name] = rng.choice(EDGES[name])
        elif way < 0.75:
            fields[name] = value(rng)
        elif way < 0.9:
            fields = change_json(rng, fields)
        else:
            fields.pop(name, None)
        if not isinstance(fields, dict):
            break
    data = json.dumps(fields).encode()
    return change_bytes(rng, data, len(data)) if rng.random() < 0.05 else data


def run_case(seed: int, folder: Path) -> str:
    """ "refused" or "answered". Raises whatever is no clean refusal."""
    rng, to = random.Random(seed), server(folder)
    try:
        if rng.random() < 0.25:
            to.offline(rng)
        else:
            to.ask(body_of(rng))
        outcome = "answered"
    except EngineFault:
        raise
    except KvasirError:
        outcome = "refused"
    if seed % CANARY_EVERY == 0:
        said = to.ask(json.dumps(CANARY).encode())
        if said != to.canary:
            raise AssertionError(f"the canary said {said}, at first {to.canary}")
    return outcome
