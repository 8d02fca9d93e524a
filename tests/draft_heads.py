"""Tiny random heads as their authors publish them, and what they draft by NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests import tiny, tiny_moe
from tests.tiny import Array, TinyModel, uniform

Wide = NDArray[np.float64]
N_LAYERS = 4
READS = (1, 2, 4)
"""Layers before which an EAGLE-3 head reads the rows of a target of ``N_LAYERS``."""
N_OWN = 96
"""Tokens that it draws."""


def target() -> TinyModel:
    return tiny.llama("tiny-target", num_hidden_layers=N_LAYERS)


def write_eagle(folder: Path, of: TinyModel) -> Path:
    """A matrix with bias that mostly hands the token on, and a layer without a norm in front."""
    own = _layer(of, "layers.0.")
    del own["layers.0.input_layernorm.weight"]
    n = of.size("hidden_size")
    fc = np.concatenate([np.eye(n), np.zeros((n, n))], axis=1).astype(np.float32)
    tensors = {
        **own,
        "fc.weight": fc + uniform("eagle/fc", fc.shape, 0.05),
        "fc.bias": uniform("eagle/bias", (n,), 0.1),
        "embed_tokens.weight": of.tensors["model.embed_tokens.weight"],
    }
    return _write(folder, {**of.config, "num_hidden_layers": 1}, tensors)


def write_eagle3(folder: Path, of: TinyModel, n_own: int = N_OWN) -> Path:
    """It draws every third token."""
    own, n = _layer(of, "midlayer."), of.size("hidden_size")
    for letter in "qkv":
        name = f"midlayer.self_attn.{letter}_proj.weight"
        shape = (own[name].shape[0], 2 * n)
        own[name] = uniform(f"eagle3/{letter}", shape, (1.5 / n) ** 0.5)
    ids = 3 * np.arange(n_own) + 1
    tensors: dict[str, NDArray[np.generic]] = {
        **own,
        "midlayer.hidden_norm.weight": uniform("eagle3/norm", (n,), 0.3, 1.0),
        "fc.weight": uniform("eagle3/fc", (n, 3 * n), (1.0 / n) ** 0.5),
        "norm.weight": uniform("eagle3/last", (n,), 0.3, 1.0),
        "lm_head.weight": of.tensors["lm_head.weight"][ids],
        "d2t": ids - np.arange(n_own),
        "t2d": np.isin(np.arange(of.size("vocab_size")), ids),
    }
    config = {
        **of.config,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": n_own,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(READS)},
    }
    return _write(folder, config, tensors)


def with_mtp() -> TinyModel:
    """GLM-4.5, whose last layer guesses a further token; none has experts."""
    sizes: dict[str, object] = {"num_hidden_layers": N_LAYERS, "first_k_dense_replace": N_LAYERS}
    whole, dense = tiny_moe.glm4_moe(**sizes), tiny.llama("dense", **sizes)
    kept = {x: t for x, t in whole.tensors.items() if ".mlp." not in x}
    mlps = {x: t for x, t in dense.tensors.items() if ".mlp." in x}
    return mtp_of(replace(whole, tensors=kept | mlps))


def mtp_of(whole: TinyModel) -> TinyModel:
    """``whole``, with its last layer behind the model's own."""
    n_layers = whole.size("num_hidden_layers") - 1
    last, n = f"model.layers.{n_layers}.", whole.size("hidden_size")
    shapes = {"eh_proj": (n, 2 * n), "enorm": (n,), "hnorm": (n,), "shared_head.norm": (n,)}
    own = {
        f"{last}{x}.weight": uniform(f"mtp/{x}", shape, 0.2, float(len(shape) == 1))
        for x, shape in shapes.items()
    }
    own |= {
        f"{last}{x}.weight": whole.tensors[name]
        for x, name in (
            ("embed_tokens", "model.embed_tokens.weight"),
            ("shared_head.head", "lm_head.weight"),
        )
    }
    config = {
        **whole.config,
        "num_hidden_layers": n_layers,
        "num_nextn_predict_layers": 1,
    }
    return replace(whole, config=config, tensors={**whole.tensors, **own})


def _layer(of: TinyModel, prefix: str) -> dict[str, NDArray[np.generic]]:
    """The target's first layer, whose drafts are right now and then."""
    first = "model.layers.0."
    own = {x: t for x, t in of.tensors.items() if x.startswith(first)}
    return {prefix + x.removeprefix(first): t for x, t in own.items()}


def _write(
    folder: Path, config: Mapping[str, object], tensors: Mapping[str, NDArray[np.generic]]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(mixed_safetensors(tensors))
    return folder


_NAMES = {"f4": "F32", "i8": "I64", "b1": "BOOL"}


def mixed_safetensors(tensors: Mapping[str, NDArray[np.generic]]) -> bytes:
    """As they are: f32, int64, bool."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        own = np.ascontiguousarray(tensor).tobytes()
        header[name] = {
            "dtype": _NAMES[tensor.dtype.str[1:]],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(own)],
        }
        data += own
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


@dataclass(frozen=True)
class NumpyHead:
    """All entries again for each token, in float64."""

    tensors: Mapping[str, Array]
    layer: str
    """Before the names of its layer."""
    reads: bool
    """EAGLE-3: attention reads token and rows side by side."""
    join: str = "fc"
    norms: tuple[str, str] | None = None
    """Of token and row."""
    last_norm: str = ""
    ids: tuple[int, ...] = ()
    eps: float = 1e-5
    theta: float = 10000.0
    rotary: int = 16

    def drafts(self, known: Sequence[int], rows: Wide, n: int) -> tuple[int, ...]:
        """Greedy picks behind ``known``, of whose tokens but the last the target gave ``rows``."""
        nexts, found = list(known[1:]), []
        for _ in range(n):
            out = self._entries(nexts, rows)
            last = out[-1:]
            if self.last_norm:
                last = _rms(last, self._of(self.last_norm), self.eps)
            pick = int(np.argmax(last @ self._of("lm_head").T))
            found.append(self.ids[pick] if self.ids else pick)
            nexts, rows = [*nexts, found[-1]], np.concatenate([rows, out[-1:]])
        return tuple(found)

    def features(self, taps: Sequence[Wide]) -> Wide:
        return np.concatenate(taps, axis=1) @ self._of(self.join).T

    def _entries(self, tokens: Sequence[int], rows: Wide) -> Wide:
        both = [self._of("embed")[list(tokens)], rows]
        if self.norms:
            pairs = zip(both, self.norms, strict=True)
            both = [_rms(x, self._of(name), self.eps) for x, name in pairs]
        read = np.concatenate(both, axis=1)
        if self.reads:
            x = rows + self._attention(read)
        else:
            x = read @ self._of(self.join).T + self._bias(self.join)
            name = f"{self.layer}input_layernorm"
            normed = _rms(x, self._of(name), self.eps) if self._has(name) else x
            x = x + self._attention(normed)
        y = _rms(x, self._of(f"{self.layer}post_attention_layernorm"), self.eps)
        gate, up = (y @ self._of(f"{self.layer}mlp.{z}_proj").T for z in ("gate", "up"))
        return x + (gate / (1 + np.exp(-gate)) * up) @ self._of(f"{self.layer}mlp.down_proj").T

    def _attention(self, x: Wide) -> Wide:
        q, k, v = (self._heads(x, letter) for letter in "qkv")
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1)
        return out @ self._of(f"{self.layer}self_attn.o_proj").T

    def _heads(self, x: Wide, letter: str) -> Wide:
        """Of 16 numbers."""
        name = f"{self.layer}self_attn.{letter}_proj"
        y = (x @ self._of(name).T + self._bias(name)).reshape(len(x), -1, 16)
        if letter == "v":
            return y
        norm = f"{self.layer}self_attn.{letter}_norm"
        y = _rms(y, self._of(norm), self.eps) if self._has(norm) else y
        return np.concatenate([self._turned(y[..., : self.rotary]), y[..., self.rotary :]], axis=-1)

    def _turned(self, x: Wide) -> Wide:
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _of(self, name: str) -> Wide:
        return self.tensors[f"{name}.weight"].astype(np.float64)

    def _has(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def _bias(self, name: str) -> Wide:
        found = self.tensors.get(f"{name}.bias")
        return np.zeros(1) if found is None else found.astype(np.float64)


def _rms(x: Wide, weight: Wide, eps: float) -> Wide:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


MEDUSA_NAMES = {
    "own": ("{i}.{j}.linear", "{i}.{n}"),
    "vllm": ("blocks.{i}.layers.{j}", "lm_heads.{i}"),
}


def write_medusa(folder: Path, of: TinyModel, names: str = "own", n_heads: int = 4) -> Path:
    """The first head is the target's, so that it repeats a token now and then; two layers each."""
    n, linear, logits = of.size("hidden_size"), *MEDUSA_NAMES[names]
    tensors: dict[str, NDArray[np.generic]] = {}
    for i in range(n_heads):
        for j in range(2):
            name = linear.format(i=i, j=j)
            tensors[f"{name}.weight"] = uniform(f"medusa/{i}/{j}", (n, n), 0.1)
            tensors[f"{name}.bias"] = uniform(f"medusa/{i}/{j}/bias", (n,), 0.1)
        head = of.tensors["lm_head.weight"] + i * uniform(
            f"medusa/{i}", (of.size("vocab_size"), n), 0.2
        )
        tensors[f"{logits.format(i=i, n=2)}.weight"] = head
    _write(folder, {"medusa_num_heads": n_heads, "medusa_num_layers": 2}, tensors)
    if names == "own":
        (folder / "model.safetensors").rename(folder / "medusa_lm_head.safetensors")
    return folder


@dataclass(frozen=True)
class NumpyMedusa:
    tensors: Mapping[str, Array]

    def drafts(self, known: Sequence[int], rows: Wide, n: int) -> tuple[int, ...]:
        """Of the newest row alone."""
        found = []
        for i in range(n):
            x = rows[-1]
            for j in range(2):
                y = self.tensors[f"{i}.{j}.linear.weight"].astype(np.float64) @ x
                y = y + self.tensors[f"{i}.{j}.linear.bias"]
                x = x + y / (1 + np.exp(-y))
            found.append(int(np.argmax(self.tensors[f"{i}.2.weight"].astype(np.float64) @ x)))
        return tuple(found)
