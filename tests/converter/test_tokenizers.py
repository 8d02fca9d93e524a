"""Tokenizers of real models as llama.cpp's converter writes them: ids as of their tokenizer.json.

KVASIR_TOKENIZERS names a folder that has a folder for each, KVASIR_CONVERTER that of the converter
(``make test-converter`` fetches both).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.weights.source import open_model

FOLDER, CONVERTER = os.environ.get("KVASIR_TOKENIZERS"), os.environ.get("KVASIR_CONVERTER")
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (FOLDER and CONVERTER), reason="make test-converter"),
]
SCRIPT = Path(__file__).parent / "convert.py"
N_TEXTS = 12_500
"""Drawn for each of the eight."""

ARCHITECTURES = {
    "deepseek_v3": ("DeepseekV3ForCausalLM", "deepseek_v3"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "gpt2": ("GPT2LMHeadModel", "gpt2"),
    "gptoss": ("GptOssForCausalLM", "gpt_oss"),
    "llama3_2": ("LlamaForCausalLM", "llama"),
    "mistral_nemo": ("MistralForCausalLM", "mistral"),
    "qwen2_5": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "n_ctx": 1024}
"""Of no meaning here; the converter wants some."""

SCRIPTS = (
    "20-7e a0-24f 250-2af 300-36f 370-3ff 400-4ff 530-58f 590-5f4 600-6ff 700-74f 780-7b1 "
    "7c0-7fa 900-97f 980-9fe a00-a75 a80-aff b00-b77 b80-bfa c00-c7f c80-cf2 d00-d7f d80-df4 "
    "e00-e5b e80-edf f00-fda 1000-109f 10a0-10ff 1100-11ff 1200-137c 13a0-13fd 1400-167f "
    "1680-169c 16a0-16f8 1780-17f9 1800-18aa 2000-206f 2200-22ff 3040-30ff 3105-312f "
    "4e00-9fff a000-a48c ac00-d7a3 fb00-fb4f fe70-fefc 1f300-1f6ff 20000-2a6df "
)
"""Ranges of code points."""
BETWEEN = ("", "", " ", "  ", "\n", "\r\n\r\n", "\t", "'s", "'LL", "1234", ".", " ...", "<|", "▁")


def text_of(draw: random.Random) -> str:
    """A few words, each of a script of its own."""
    parts = []
    for _ in range(draw.randint(1, 9)):
        first, last = (int(x, 16) for x in draw.choice(SCRIPTS.split()).split("-"))
        parts += [chr(draw.randint(first, last)) for _ in range(draw.randint(1, 6))]
        parts.append(draw.choice(BETWEEN))
    return "".join(parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each tokenizer in a model's folder, and what the converter made of it."""
    root, paths = tmp_path_factory.mktemp("tokenizers"), []
    for name, (architecture, kind) in ARCHITECTURES.items():
        shutil.copytree(Path(FOLDER or "") / name, root / name)
        said = {
            "architectures": [architecture],
            "model_type": kind,
            "vocab_size": size(root / name),
        }
        (root / name / "config.json").write_text(json.dumps({**SIZES, **said}), "utf-8")
        paths += [str(root / name), str(root / f"{name}.gguf")]
    command = [sys.executable, str(SCRIPT), "--vocab", str(CONVERTER), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return root


def size(path: Path) -> int:
    known = json.loads((path / "tokenizer.json").read_text("utf-8"))
    ids = [*known["model"]["vocab"].values(), *(x["id"] for x in known["added_tokens"])]
    return max(ids) + 1


def load(folder: Path, name: str) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    refused = folder / f"{name}.gguf.error"
    assert not refused.exists(), refused.read_text("utf-8")
    expected = tokenizers.Tokenizer.from_file(str(folder / name / "tokenizer.json"))
    return load_tokenizer(open_model(folder / f"{name}.gguf")), expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ids_are_those_of_the_folder(folder: Path, name: str) -> None:
    found, expected = load(folder, name)
    draw = random.Random(name)
    for text in (text_of(draw) for _ in range(N_TEXTS)):
        ids = expected.encode(text, add_special_tokens=False).ids
        assert found.encode(text, add_special=False) == ids, text
        assert found.decode(ids, skip_special=False) == expected.decode(ids, False), text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_special_tokens_are_read(folder: Path, name: str) -> None:
    found, expected = load(folder, name)
    added = expected.get_added_tokens_decoder().values()
    for token in [x.content for x in added if x.special][:40]:
        text = f"a {token}b  {token}"
        ids = expected.encode(text, add_special_tokens=False).ids
        assert found.encode(text, add_special=False) == ids, text
