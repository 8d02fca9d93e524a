"""What llama.cpp's converter makes of a Gemma 3n checkpoint, beside what it does to Gemma 4's."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Config = Mapping[str, object]
TOP = {
    "model.altup_projections": "altup_proj",
    "model.altup_unembed_projections": "altup_unembd_proj",
}
LAYER = {
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
}
BARE = {"altup.correct_output_scale": "altup_correct_scale.weight"}
_FIELDS = {
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "altup_active_idx": "altup.active_idx",
    "altup_num_inputs": "altup.num_inputs",
}


def fields(config: Config) -> dict[str, object]:
    """Those that it writes beside what all models have, without the architecture's name."""
    types, shares = config["layer_types"], config["activation_sparsity_pattern"]
    assert isinstance(types, list)
    assert isinstance(shares, list)
    return {
        **{key: config[name] for name, key in _FIELDS.items()},
        "attention.sliding_window_pattern": [x == "sliding_attention" for x in types],
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(share) if share else float("-inf") for share in shares
        ],
    }


def stacked(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Matrices of the streams as one tensor each."""
    found = {name: x for name, x in tensors.items() if not name.startswith(tuple(TOP))}
    for name in TOP:
        parts = [tensors[key] for key in sorted(tensors) if key.startswith(f"{name}.")]
        found |= {f"{name}.weight": np.stack(parts)} if parts else {}
    return found
