"""GPT-2's first checkpoints, whose tensors lack the name of the whole before their own."""

from dataclasses import replace

from kvasir.models.families.gpt2 import GPT2

GPT2_BARE = replace(
    GPT2,
    name="gpt2_bare",
    gguf="",
    hf_layers="h",
    tensors={
        name: each._replace(hf=each.hf.removeprefix("transformer."))
        for name, each in GPT2.tensors.items()
    },
)
