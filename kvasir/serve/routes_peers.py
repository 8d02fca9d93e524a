"""What clients of other servers ask about this one: llama-server, TGI, KServe, SageMaker, vLLM and
SGLang."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kvasir import __version__
from kvasir.serve.answers import peers
from kvasir.serve.answers.own import Health
from kvasir.serve.endpoint import Handler
from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.routes_info import get_health
from kvasir.serve.service import Service
from kvasir.tokenizer.messages import Conversation, read_messages
from kvasir.validation.sampling import MAX_CHOICES
from kvasir.validation.stops import MAX_STOP_STRINGS
from kvasir.validation.warn import warned


class TemplateRequest(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    model: str | None = None
    add_generation_prompt: bool = True


async def get_props(service: Service, exchange: Exchange) -> None:
    """llama-server."""
    text, info = await service.default.open()
    tokenizer = text.tokenizer
    bos, eos = tokenizer.bos_id, next(iter(tokenizer.eos_ids), None)
    props: peers.Props = {
        "default_generation_settings": {"n_ctx": info.max_model_len},
        "total_slots": info.max_num_seqs,
        "model_alias": service.default.name,
        "chat_template": text.template.text or "",
        "modalities": {"vision": text.sight is not None, "audio": False},
        "bos_token": None if bos is None else tokenizer.piece(bos),
        "eos_token": None if eos is None else tokenizer.piece(eos),
        "build_info": f"kvasir-{__version__}",
    }
    await exchange.send_json(props)


async def get_slots(service: Service, exchange: Exchange) -> None:
    """llama-server, without what anybody says: which of its places are taken."""
    _, info = await service.default.open()
    n_running = service.default.client.stats.n_running
    slots: list[peers.LlamaSlot] = [
        {"id": i, "n_ctx": info.max_model_len, "is_processing": i < n_running}
        for i in range(info.max_num_seqs)
    ]
    await exchange.send_json(slots)


async def post_apply_template(service: Service, exchange: Exchange) -> None:
    """llama-server."""

    def read(body: Json) -> tuple[TemplateRequest, tuple[str, ...], Conversation]:
        request, notes = parse_request(TemplateRequest, body, {}, strict=service.options.strict)
        return request, notes, read_messages(request.messages)

    async with exchange.reading(read) as (request, warnings, (messages, notes)):
        text, info = await service.model_of(request.model).open()
        size = sum(len(message.content) for message in messages)
        text.check_bytes(size, info.max_model_len, "messages")
        said = [msgspec.structs.asdict(message) for message in messages]
        prompt = await asyncio.to_thread(text.template.render, said, request.add_generation_prompt)
    await exchange.send_json({"prompt": prompt, **warned(warnings + notes)})


async def get_info(service: Service, exchange: Exchange) -> None:
    """TGI."""
    text, info = await service.default.open()
    answer: peers.TgiInfo = {
        "model_id": service.default.name,
        "model_sha": info.key_root,
        "model_dtype": text.facts.quantization,
        "model_device_type": "cpu",
        "max_concurrent_requests": service.options.max_requests,
        "max_best_of": MAX_CHOICES,
        "max_stop_sequences": MAX_STOP_STRINGS,
        "max_input_tokens": info.max_model_len - 1,
        "max_total_tokens": info.max_model_len,
        "max_client_batch_size": 1,
        "router": "kvasir",
        "version": __version__,
    }
    await exchange.send_json(answer)


async def get_v2_live(service: Service, exchange: Exchange) -> None:
    """KServe."""
    is_live, _ = service.lifecycle.health
    await exchange.send_json({"live": is_live}, 200 if is_live else 503)


async def get_v2_ready(service: Service, exchange: Exchange) -> None:
    """KServe."""
    is_ready, _ = service.lifecycle.ready
    await exchange.send_json({"ready": is_ready}, 200 if is_ready else 503)


async def get_v2(service: Service, exchange: Exchange) -> None:
    """KServe."""
    await exchange.send_json({"name": "kvasir", "version": __version__, "extensions": ["generate"]})


async def get_v2_model(service: Service, exchange: Exchange) -> None:
    """KServe."""
    model = service.check_model(exchange.path_params["model"])
    answer: peers.KserveModel = {
        "name": model.name,
        "versions": ["1"],
        "platform": "kvasir",
        "inputs": [_tensor("text_input")],
        "outputs": [_tensor("text_output")],
    }
    await exchange.send_json(answer)


async def get_v2_model_ready(service: Service, exchange: Exchange) -> None:
    """KServe."""
    model = service.check_model(exchange.path_params["model"])
    is_ready, _ = model.lifecycle.ready
    await exchange.send_json({"name": model.name, "ready": is_ready}, 200 if is_ready else 503)


def _tensor(name: str) -> peers.KserveTensor:
    return {"name": name, "datatype": "BYTES", "shape": [-1]}


async def get_tokenizer_info(service: Service, exchange: Exchange) -> None:
    """vLLM."""
    text, info = await service.default.open()
    tokenizer = text.tokenizer
    bos = tokenizer.bos_id
    answer: peers.TokenizerInfo = {
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": info.max_model_len,
        "bos_token": None if bos is None else tokenizer.piece(bos),
        "eos_tokens": [tokenizer.piece(i) for i in tokenizer.eos_ids],
        "special_tokens": [tokenizer.piece(i) for i in sorted(tokenizer.special_ids)],
        "chat_template": text.template.text,
    }
    await exchange.send_json(answer)


async def get_server_info(service: Service, exchange: Exchange) -> None:
    """vLLM and SGLang: what the engine was built for, and why."""
    _, info = await service.default.open()
    answer: peers.ServerInfo = {
        "version": __version__,
        "model": service.default.name,
        "numerics_id": info.numerics_id,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "num_blocks": info.n_blocks,
        "block_size": info.block_size,
        "reasons": info.reasons,
    }
    await exchange.send_json(answer)


async def get_load(service: Service, exchange: Exchange) -> None:
    """vLLM: requests that are not answered yet."""
    n = sum(client.n_streams for client in service.clients)
    await exchange.send_json({"server_load": n})


async def get_loads(service: Service, exchange: Exchange) -> None:
    """SGLang: of each engine."""
    loads: list[peers.EngineLoad] = []
    for rank, client in enumerate(service.clients):
        stats = client.stats
        n_used = stats.blocks_total - stats.blocks_free - stats.blocks_cached
        share = n_used / stats.blocks_total if stats.blocks_total else 0.0
        load: peers.EngineLoad = {
            "dp_rank": rank,
            "num_running_reqs": stats.n_running,
            "num_waiting_reqs": stats.n_waiting,
            "num_total_reqs": stats.n_running + stats.n_waiting,
            "num_waiting_tokens": stats.tokens_waiting,
            "token_usage": round(share, 4),
        }
        loads.append(load)
    await exchange.send_json({"version": __version__, "loads": loads})


HEALTH: dict[str, tuple[Handler, type]] = {
    "/ping": (get_health, Health),
    "/v2/health/live": (get_v2_live, peers.KserveLive),
    "/v2/health/ready": (get_v2_ready, peers.KserveReady),
}
"""Public, as ours are; and their answers."""
GET: dict[str, tuple[Handler, Any]] = {
    "/props": (get_props, peers.Props),
    "/slots": (get_slots, list[peers.LlamaSlot]),
    "/info": (get_info, peers.TgiInfo),
    "/v2": (get_v2, peers.KserveServer),
    "/v2/models/{model}": (get_v2_model, peers.KserveModel),
    "/v2/models/{model}/ready": (get_v2_model_ready, peers.KserveModelReady),
    "/tokenizer_info": (get_tokenizer_info, peers.TokenizerInfo),
    "/server_info": (get_server_info, peers.ServerInfo),
    "/load": (get_load, peers.ServerLoad),
    "/v1/loads": (get_loads, peers.EngineLoads),
}
