"""Programs whose text is golden. ``python -m tests.golden.programs`` writes the files anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kvasir.checkpoints.loaded import load_model
from kvasir.checkpoints.tower_weights import build_tower
from kvasir.ir.printer import render
from tests import (
    tiny,
    tiny_gemma4_vision,
    tiny_gemma_vision,
    tiny_internvl,
    tiny_llava,
    tiny_pixtral,
    tiny_qwen_vl,
    tiny_vision,
)
from tests.loading import load
from tests.oracle.cases import ENCODERS, KIN

HERE = Path(__file__).parent


def llama_raw(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.llama(num_hidden_layers=2), folder)).program)


def llama_cpu(folder: Path) -> str:
    """Quantized: segments, q8 activations, and rows of q and k reordered."""
    path = tiny.write_gguf_model(tiny.llama(num_hidden_layers=2), folder / "m.gguf", "Q4_1")
    return render(load(path, "auto").program)


def mixtral_raw(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.mixtral(), folder)).program)


def mixtral_cpu(folder: Path) -> str:
    """An f32 router beside int8 experts."""
    path = tiny.write_gguf_model(tiny.mixtral(), folder / "m.gguf", "Q4_0")
    return render(load(path, "auto").program)


def qwen2_raw(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.qwen2(num_hidden_layers=2), folder)).program)


def qwen2_cpu(folder: Path) -> str:
    """Biases of one linear of three segments."""
    path = tiny.write_gguf_model(tiny.qwen2(num_hidden_layers=2), folder / "m.gguf", "Q8_0")
    return render(load(path, "auto").program)


def qwen3_raw(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.qwen3(num_hidden_layers=2), folder)).program)


def gemma3_raw(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.gemma3(), folder)).program)


def gemma3_cpu(folder: Path) -> str:
    return render(load(tiny.write_hf(tiny.gemma3(), folder, "BF16"), "auto").program)


def _kin_raw(make: Callable[[], tiny.TinyModel], folder: Path) -> str:
    return render(load(tiny.write_hf(make(), folder)).program)


def smolvlm_raw(folder: Path) -> str:
    return _seeing_raw(tiny_vision.write(tiny_vision.smolvlm(), folder))


def gemma3_vision_raw(folder: Path) -> str:
    """Tokens that see each other; heads of the tower that are padded, means of patches."""
    return _seeing_raw(tiny_gemma_vision.write(tiny_gemma_vision.gemma3_vision(), folder))


def gemma4_vision_raw(folder: Path) -> str:
    """Tokens that see each other in layers with a window; places of columns and of lines."""
    return _seeing_raw(tiny_gemma4_vision.write(tiny_gemma4_vision.gemma4_vision(), folder))


def internvl_raw(folder: Path) -> str:
    """Factors of parts, a row of no patch, patches side by side."""
    return _seeing_raw(tiny_internvl.write(tiny_internvl.internvl(), folder))


def llava_onevision_raw(folder: Path) -> str:
    """A tower without its last norm, and a row of no tile."""
    return _seeing_raw(tiny_llava.write(tiny_llava.llava_onevision(), folder))


def mistral3_raw(folder: Path) -> str:
    """Neighbours that a matrix of their own merges."""
    return _seeing_raw(tiny_pixtral.write(tiny_pixtral.mistral3(), folder))


def qwen2_vl_raw(folder: Path) -> str:
    """Quick GELU as three ops; padded heads."""
    return _seeing_raw(tiny_qwen_vl.write(tiny_qwen_vl.qwen2_vl(), folder))


def qwen2_5_vl_raw(folder: Path) -> str:
    """Sections one behind the other, layers with windows apart from those without."""
    return _seeing_raw(tiny_qwen_vl.write(tiny_qwen_vl.qwen2_5_vl(), folder))


def qwen3_vl_raw(folder: Path) -> str:
    return _seeing_raw(tiny_qwen_vl.write(tiny_qwen_vl.qwen3_vl(), folder))


def qwen3_vl_moe_raw(folder: Path) -> str:
    """Experts whose gate and up are halves of one tensor."""
    return _seeing_raw(tiny_qwen_vl.write(tiny_qwen_vl.qwen3_vl_moe(), folder))


def _seeing_raw(path: Path) -> str:
    """The target, and both programs of its tower."""
    tower = load_model(str(path)).tower
    assert tower is not None
    programs = load(path).program, *build_tower(tower).programs
    return "\n".join(map(render, programs))


TEXTS: Mapping[str, Callable[[Path], str]] = {
    f"{make.__name__}.txt": make
    for make in (
        *(llama_raw, llama_cpu, mixtral_raw, mixtral_cpu),
        *(qwen2_raw, qwen2_cpu, qwen3_raw, gemma3_raw, gemma3_cpu, smolvlm_raw),
        *(gemma3_vision_raw, internvl_raw, qwen2_vl_raw, qwen2_5_vl_raw, qwen3_vl_raw),
        *(qwen3_vl_moe_raw, mistral3_raw, llava_onevision_raw, gemma4_vision_raw),
    )
} | {f"{make.__name__}_raw.txt": partial(_kin_raw, make) for make in (*KIN, *ENCODERS.values())}


def main() -> None:
    for name, make in TEXTS.items():
        with TemporaryDirectory() as folder:
            (HERE / name).write_text(make(Path(folder)))
        print(f"wrote {HERE / name}")


if __name__ == "__main__":
    main()
