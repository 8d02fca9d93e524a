"""Dense layers behind the pooling, and what they compute."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import ModelError
from kvasir.formats.safetensors import open_safetensors
from kvasir.formats.types import TensorInfo
from kvasir.models.spec import ModelConfig
from kvasir.weights.source import ModelSource

ACTS = ("identity", "tanh", "gelu", "relu", "silu")
"""Of dense layers; "gelu" is the exact one."""
_MAX_DENSE = 4
_FOLDER_ACTS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
}


class DenseLayer(msgspec.Struct, frozen=True):
    """act(x W^T + b), then a LayerNorm where there is one."""

    weight: TensorInfo
    """[outputs, inputs]."""
    bias: TensorInfo | None = None
    act: str = "identity"
    norm: TensorInfo | None = None
    norm_bias: TensorInfo | None = None
    eps: float = 0.0


def dense_layers(source: ModelSource, config: ModelConfig) -> tuple[DenseLayer, ...]:
    """Between the pooling and the vector, as in folders of sentence-transformers and GGUF files of
    EmbeddingGemma. Raises ModelError."""
    read = _gguf_dense if source.kind == "gguf" else _folder_dense
    found: list[DenseLayer] = []
    n_inputs = config.hidden_size
    for number in range(2, 2 + _MAX_DENSE):
        layer = read(source, number)
        if layer is None:
            break
        if len(layer.weight.shape) != 2 or layer.weight.shape[1] != n_inputs:
            raise ModelError(
                f"{source.path}: {layer.weight.name} of dense layer {number} is "
                f"{layer.weight.shape}, expected [outputs, {n_inputs}]"
            )
        n_inputs = layer.weight.shape[0]
        found.append(layer)
    return tuple(found)


def _gguf_dense(source: ModelSource, number: int) -> DenseLayer | None:
    weight = source.tensors.get(f"dense_{number}.weight")
    return (
        None if weight is None else DenseLayer(weight, source.tensors.get(f"dense_{number}.bias"))
    )


def _folder_dense(source: ModelSource, number: int) -> DenseLayer | None:
    name = f"{number}_Dense"
    said = source.read_json(f"{name}/config.json")
    if not said:
        return None
    where = f"{source.path}: {name}/config.json"
    act = _FOLDER_ACTS.get(str(said.get("activation_function", "torch.nn.modules.linear.Identity")))
    if act is None:
        raise ModelError(
            f"{where}: activation_function {str(said['activation_function'])[:80]!r} is not "
            f"supported: {', '.join(_FOLDER_ACTS)}",
            code="unsupported_model",
        )
    path = source.path / name / "model.safetensors"
    if not path.is_file():
        raise ModelError(f"{source.path}: {name}/model.safetensors is missing: download it")
    file = open_safetensors(path)
    weight, bias = file.tensors.get("linear.weight"), file.tensors.get("linear.bias")
    if weight is None or (bias is None) == bool(said.get("bias", True)):
        raise ModelError(
            f"{path} has {', '.join(file.tensors)[:200]}, expected linear.weight and its bias"
        )
    if list(weight.shape) != [said.get("out_features"), said.get("in_features")]:
        raise ModelError(
            f"{where}: out_features and in_features are {said.get('out_features')} and "
            f"{said.get('in_features')}, linear.weight is {weight.shape}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ModelError(f"{path}: linear.bias is {bias.shape}, expected [{weight.shape[0]}]")
    return DenseLayer(weight, bias, act)
