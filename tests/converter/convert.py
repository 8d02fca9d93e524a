"""Runs llama.cpp's converter: ``python convert.py HOW CONVERTER FOLDER FILE [FOLDER FILE ...]``, in
an environment with torch and transformers. What it refuses is said in FILE.error.

``--vocab``: the files have tokenizers alone. ``--apart``, ``--fused``: they have none, weights stay
float32, and q, k and v are in three tensors or in one. ``--mmproj``: they are towers alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> None:
    how, converter, *paths = arguments
    sys.path[:0] = [converter, f"{converter}/gguf-py"]
    for folder, file in zip(paths[::2], paths[1::2], strict=True):
        try:
            convert(how, Path(folder), Path(file))
        except Exception as error:
            Path(f"{file}.error").write_text(f"{type(error).__name__}: {error}", "utf-8")


def convert(how: str, folder: Path, file: Path) -> None:
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    fields = ModelBase.load_hparams(folder, False)
    if how == "--mmproj":
        name = get_model_architecture(fields, ModelType.MMPROJ)
        get_model_class(name, mmproj=True)(folder, gguf.LlamaFileType.ALL_F32, file).write()
        return
    kind: Any = get_model_class(get_model_architecture(fields, ModelType.TEXT))
    if how != "--vocab":
        own = {"model_arch": kind.model_arch, "set_vocab": lambda self: None, "no_mtp": True}
        kind = type(kind.__name__, (kind,), own)
    made = kind(folder, gguf.LlamaFileType.ALL_F32, file, fuse_qkv=how == "--fused")
    made.write_vocab() if how == "--vocab" else made.write()


if __name__ == "__main__":
    main(sys.argv[1:])
