"""Mutated model files, each from a seed: loaded, and when they load, asked a few requests."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError
from kvasir.core.request import EngineRequest
from kvasir.engine.build import build_engine
from kvasir.engine.engine import Engine
from kvasir.engine.loop import EngineFault
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.params import check_prompt, resolve_params
from kvasir.validation.sampling import SamplingParams
from tests import (
    tiny,
    tiny_gemma,
    tiny_gemma4_vision,
    tiny_latent,
    tiny_qwen_vl,
    tiny_state,
    tiny_vision,
)
from tests.fuzz_values import FLOATS, change_bytes, change_json, near
from tests.gguf_writer import gguf_bytes, safetensors_bytes
from tests.gguf_writer import value as encode
from tests.quantized_kinds import KINDS, SIZES
from tests.quantized_writer import write_quantized
from tests.tiny_vocab import sentence_piece

GGUF_KEYS = (
    *("rope.scaling.type", "rope.scaling.factor", "rope.freq_base_swa", "rope.dimension_count"),
    *("attention.sliding_window", "attention.sliding_window_pattern", "expert_count"),
    *("expert_used_count", "expert_shared_count", "logit_scale", "final_logit_softcapping"),
)
GGUF_TOKENS = (
    *("unknown_token_id", "padding_token_id", "eot_token_id", "eom_token_id", "add_bos_token"),
    *("add_eos_token", "add_space_prefix", "scores", "merges", "eos_token_id", "bos_token_id"),
)
HF_KEYS = (
    *("rope_scaling", "rope_parameters", "sliding_window", "max_window_layers", "layer_types"),
    *("use_sliding_window", "attention_bias", "mlp_bias", "eos_token_id", "bos_token_id"),
    *("num_experts_per_tok", "num_local_experts", "query_pre_attn_scalar", "pad_token_id"),
)
ROPES = ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}, {"type": "linear", "factor": 2.0})  # fmt: skip


@dataclass(frozen=True, slots=True)
class HfBase:
    """Parsed JSON files by name, and tensors."""

    files: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]


def _hf(model: tiny.TinyModel) -> HfBase:
    settings = {
        "bos_token": "<|bos|>",
        "eos_token": {"content": "<|eos|>"},
        "chat_template": TEMPLATE,
    }
    files = {
        "config.json": dict(model.config),
        "tokenizer.json": json.loads(tiny.tokenizer().to_str()),
        "tokenizer_config.json": settings,
        "generation_config.json": {"eos_token_id": [1, 3], "bos_token_id": 0},
    }
    return HfBase(files, model.tensors)


def _seeing(model: tiny.TinyModel, write: Callable[[tiny.TinyModel, Path], Path]) -> HfBase:
    """With what its processor says."""
    with TemporaryDirectory() as folder:
        found = sorted(write(model, Path(folder)).glob("*.json"))
        files = {file.name: json.loads(file.read_bytes()) for file in found}
    return HfBase(_hf(model).files | files, model.tensors)


def _sentence_piece(parts: tiny.GgufParts) -> tiny.GgufParts:
    metadata, tensors = parts
    n = len(sentence_piece()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    kept = {k: v for k, v in metadata.items() if not k.startswith("tokenizer.ggml.")}
    embed = {name: (f, x[:n]) for name, (f, x) in tensors.items() if len(x) == tiny.VOCAB}
    return kept | sentence_piece(), tensors | embed


TEMPLATE = tiny.CHAT_TEMPLATE
SMALL = {"num_hidden_layers": 1}
GGUF = (
    tiny.gguf_parts(tiny.llama(**SMALL), "Q8_0"),
    _sentence_piece(tiny.gguf_parts(tiny.llama(**SMALL), "Q4_0")),
    tiny.gguf_parts(tiny.mixtral(), "F16"),
    tiny.gguf_parts(tiny.gemma3(), "F32"),
    tiny.gguf_parts(tiny.qwen2(**SMALL), "BF16"),
    tiny.gguf_parts(tiny_latent.deepseek_v3(), "Q8_0"),
    tiny.gguf_parts(tiny_state.lfm2_moe(), "F16"),
    tiny.gguf_parts(tiny_gemma.gemma4_moe(), "BF16"),
)
ENCODED = {id(item): encode(item) for metadata, _ in GGUF for item in metadata.values()}
"""What takes most of the time of writing a file, done once."""
NEWER = (tiny_latent.deepseek_v2(), tiny_state.lfm2(), tiny_gemma.gemma4())
"""Latents, states, keys and values of other layers."""
SEEING = (
    _seeing(tiny_vision.smolvlm(), tiny_vision.write),
    _seeing(tiny_qwen_vl.qwen2_5_vl(), tiny_qwen_vl.write),
    _seeing(tiny_gemma4_vision.gemma4_vision(), tiny_gemma4_vision.write),
)
OLDER = (tiny.llama(**SMALL), tiny.mixtral(), tiny.gemma3(), tiny.qwen3(**SMALL))
HF = (*map(_hf, (*OLDER, *NEWER)), *SEEING)


def write_case(seed: int, folder: Path) -> Path:
    """The mutated model of ``seed``: a file or folder inside ``folder``."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        path = folder / "model.gguf"
        path.write_bytes(_mutated_gguf(rng))
        return path
    path = folder / "model"
    path.mkdir()
    if rng.random() < 0.3:
        _write_quantized(rng, path)
    else:
        _write_hf(rng, path)
    return path


def odd_sizes(rng: random.Random) -> tiny.TinyModel:
    """A whole model of sizes that nobody chooses."""
    heads = rng.choice((1, 2, 3, 4))
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": rng.choice((2, 15, 16, 31, 33, 48, 64, 96)),
        "intermediate_size": rng.choice((1, 16, 31, 32, 40, 96)),
        "num_attention_heads": heads * rng.choice((1, 2, 5)),
        "num_key_value_heads": heads,
        "head_dim": rng.choice((2, 8, 16, 16, 24, 32)),
        "vocab_size": rng.choice((1, 5, 17, 300, 319, 320, 333)),
        "max_position_embeddings": rng.choice((1, 2, 17, 64, 512)),
    }
    return rng.choice((tiny.llama, tiny.qwen2, tiny.qwen3))(**sizes)


def _mutated_gguf(rng: random.Random) -> bytes:
    base, tensors = rng.choice(GGUF)
    if rng.random() < 0.15:
        base, tensors = tiny.gguf_parts(odd_sizes(rng), rng.choice(("F32", "F16", "BF16")))
    metadata, way = dict(base), rng.random()
    for _ in range(rng.choice((0, 1, 1, 2, 4)) if way < 0.8 else 0):
        _change_metadata(rng, metadata)
    if rng.random() < 0.05:
        metadata[f"tokenizer.ggml.{rng.choice(('eos', 'eot', 'bos'))}_token_id"] = rng.choice(IDS)
    if rng.random() < 0.25:
        tensors = _changed_tensors(rng, tensors)
    with np.errstate(all="ignore"):
        data = gguf_bytes({k: ENCODED.get(id(v), v) for k, v in metadata.items()}, tensors)
    return data if way < 0.6 else change_bytes(rng, data, rng.choice((200, 12_000, len(data))))


def _change_metadata(rng: random.Random, metadata: dict[str, object]) -> None:
    arch = base_arch(metadata)
    extra = [f"{arch}.{key}" for key in GGUF_KEYS] + [
        f"tokenizer.ggml.{key}" for key in GGUF_TOKENS
    ]
    key = rng.choice([*metadata, *metadata, *extra])
    old = metadata.get(key)
    if rng.random() < 0.1:
        metadata.pop(key, None)
        return
    for _ in range(9):
        new = near(rng, old)
        try:
            encode(new)
        except (TypeError, struct.error, OverflowError, ValueError):
            continue
        metadata[key] = new
        return


def base_arch(metadata: Mapping[str, object]) -> str:
    return next((key.split(".")[0] for key in metadata if key.endswith(".block_count")), "llama")


def _changed_tensors(
    rng: random.Random, tensors: Mapping[str, tuple[str, np.ndarray]]
) -> dict[str, tuple[str, np.ndarray]]:
    changed = dict(tensors)
    name = rng.choice(list(changed))
    format, x = changed.pop(name)
    way = rng.randrange(7)
    if way == 0:
        changed["rope_freqs.weight"] = ("F32", np.array(rng.choices(FLOATS, k=8)))
        changed[name] = (format, x)
    elif way == 1:
        changed[name] = (rng.choice(("F32", "F16", "BF16")), x)
    elif way == 2:
        x = x.copy()
        x.flat[rng.randrange(x.size)] = rng.choice((np.nan, np.inf, -np.inf, 3e38, 1e-45))
        changed[name] = ("F32", x)
    elif way == 3:
        changed[name] = ("F32", x[: rng.randrange(1, len(x) + 1)])
    elif way == 4:
        changed[name] = ("F32", x.reshape(rng.choice(((-1,), (1, *x.shape), x.shape[::-1]))))
    elif way == 5:
        changed[rng.choice((name + "x", "output.weight", "blk.0.attn_q.bias"))] = (format, x)
    return changed


def _write_hf(rng: random.Random, folder: Path) -> None:
    base = _hf(odd_sizes(rng)) if rng.random() < 0.15 else rng.choice(HF)
    files = dict(base.files)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        name = rng.choice((*files, "config.json"))
        files[name] = change_json(rng, files[name], HF_KEYS if "g.json" in name else ())
        if name == "config.json" and rng.random() < 0.1:
            files[name] = {**base.files[name], "rope_scaling": change_json(rng, rng.choice(ROPES))}
    if rng.random() < 0.1:
        name = rng.choice(("config.json", "generation_config.json"))
        files[name] = {**base.files[name], "eos_token_id": _ids(rng)}
    for name, tree in files.items():
        data = json.dumps(tree).encode()
        if rng.random() < 0.1:
            data = change_bytes(rng, data, len(data))
        if rng.random() > 0.02:
            (folder / name).write_bytes(data)
    weights = safetensors_bytes(base.tensors, rng.choice(("F32", "BF16")))
    if rng.random() < 0.2:
        weights = _changed_safetensors(rng, weights)
    (folder / "model.safetensors").write_bytes(weights)


@cache
def _quantized(name: str) -> tuple[Mapping[str, Any], bytes]:
    """JSON files by name, and weights, of a checkpoint of a kind."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        write_quantized(tiny.llama(**SMALL, **SIZES), path, KINDS[name])
        files = {file.name: json.loads(file.read_bytes()) for file in path.glob("*.json")}
        return files, (path / "model.safetensors").read_bytes()


def _write_quantized(rng: random.Random, folder: Path) -> None:
    files, weights = _quantized(rng.choice(sorted(KINDS)))
    config = dict(files["config.json"])
    for _ in range(rng.choice((0, 1, 1, 2))):
        config["quantization_config"] = change_json(rng, config["quantization_config"])
    for name, tree in (files | {"config.json": config}).items():
        (folder / name).write_text(json.dumps(tree))
    way = rng.random()
    if way < 0.3:
        weights = _changed_safetensors(rng, weights)
    elif way < 0.6:
        weights = change_bytes(rng, weights, len(weights))
    (folder / "model.safetensors").write_bytes(weights)


def _changed_safetensors(rng: random.Random, data: bytes) -> bytes:
    n = int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        return change_bytes(rng, data, n + 8)
    header = json.dumps(change_json(rng, json.loads(data[8 : 8 + n]))).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + n :]


IDS = (1, 318, 319, 320, 332, 999_999, (1 << 31) - 1, (1 << 32) - 1, 1 << 63)


def _ids(rng: random.Random) -> int | list[int]:
    """What may stand where an id or a list of ids is expected."""
    return rng.choice(IDS) if rng.random() < 0.5 else [1, rng.choice(IDS)]


OPTIONS: dict[str, Any] = {
    "max_num_seqs": 3,
    "threads": 1,
    "kv_memory": "1MiB",
    "packed_cache": "off",
}
CANARY = SamplingParams(temperature=0.0, max_tokens=3)


def run_case(seed: int, folder: Path) -> str:
    """ "refused" or "answered". Raises whatever is no clean refusal."""
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    path = write_case(seed, folder)
    try:
        loaded = load_model(str(path))
        tokenizer = load_tokenizer(loaded.source)
        template = ChatTemplate(loaded.source, tokenizer) if seed % 3 == 0 else None
        options = EngineOptions(model=str(path), async_scheduling=bool(seed % 2), **OPTIONS)
        built = build_engine(options, loaded=loaded)
    except KvasirError:
        return "refused"
    with closing(built.engine) as engine:
        asker = Asker(
            engine, tokenizer, built.config.sizes.max_model_len, built.config.sizes.vocab_size
        )
        first = asker.text("hello there")
        if template is not None:
            asker.chat(template, "hi")
            asker.chat(template, "<|im_end|> \u205e")
        asker.sampled(random.Random(seed))
        again = asker.text("hello there")
        if first != again:
            raise AssertionError(f"the canary said {first}, then {again}")
        engine.check()
    return "answered"


@dataclass
class Asker:
    """Requests as the server would make them."""

    engine: Engine
    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    n: int = 0

    def text(self, text: str, params: SamplingParams = CANARY) -> object:
        return self._clean(lambda: self._run(self.tokenizer.encode(text), params))

    def chat(self, template: ChatTemplate, content: str) -> None:
        messages = [{"role": "user", "content": content}]
        self._clean(lambda: self._run(self.tokenizer.surround(template.encode(messages)), CANARY))

    def sampled(self, rng: random.Random) -> None:
        ids = [rng.randrange(self.vocab_size) for _ in range(rng.randint(1, 20))]
        params = SamplingParams(
            seed=1, max_tokens=4, min_tokens=rng.randint(0, 2), logprobs=3, top_p=0.9,
            repetition_penalty=1.2, stop_token_ids=[ids[0]], logit_bias={ids[-1]: 3.0},
            prompt_logprobs=rng.choice((None, 2)),
        )  # fmt: skip
        self._clean(lambda: self._run(ids, params))

    def _clean(self, ask: Callable[[], object]) -> object:
        try:
            return ask()
        except EngineFault:
            raise
        except KvasirError as error:
            return error.message

    def _run(self, ids: list[int], params: SamplingParams) -> object:
        bounds = {"vocab_size": self.vocab_size, "max_model_len": self.max_model_len}
        check_prompt(ids, **bounds)
        eos = self.tokenizer.eos_ids
        resolved = resolve_params(params, **bounds, n_prompt=len(ids), eos_ids=eos)
        self.n += 1
        self.engine.add(EngineRequest(self.n, tuple(ids), resolved))
        events = []
        while self.engine.has_work:
            events += self.engine.step().events
        tokens = [token for event in events for token in event.tokens]
        self.tokenizer.decode(tokens)
        return tokens, events[-1].finish, events[-1].error
