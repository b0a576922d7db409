"""Reader of the gates that Fast KVzip's authors publish."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray
from torch import Tensor

from foveate.data.texts import check_file
from foveate.errors import InvalidInput

NAMES = {
    "of_query": "q_proj.weight",
    "query_offset": "q_proj.bias",
    "of_key": "k_proj.weight",
    "query_norm": "q_norm.weight",
    "key_norm": "k_norm.weight",
    "sink_keys": "k_base",
    "offset": "b",
}
"""Names of the authors' tensors, by ours."""
_MAKE = multiarray._reconstruct
# the file also has the losses of the training, as arrays, which NumPy 1 wrote by another name
ARRAYS: list[Any] = [np.ndarray, np.dtype, _MAKE, (_MAKE, "numpy.core.multiarray._reconstruct")]
ARRAYS += [type(np.dtype(kind)) for kind in ("f4", "f8")]


def read_gates(path: str | Path) -> list[dict[str, Tensor]]:
    """Return the tensors of every layer's gate, in float32, from a ``.pt`` file of the release.

    Raises:
        InvalidInput: the file does not exist, or has no gates with sinks.
    """
    check_file(Path(path))
    try:
        with torch.serialization.safe_globals(ARRAYS):
            content = torch.load(path, map_location="cpu", weights_only=True)
        return [_gate(weights) for weights in content["module"]]
    except (
        pickle.UnpicklingError,
        RuntimeError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
    ) as error:
        raise InvalidInput(
            f"{path} has no gates of Fast KVzip: expected a file of its release with sinks, "
            "such as q4_dim16_sink16.pt."
        ) from error


def _gate(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return one layer's tensors by head, in our shapes."""
    gate = {name: weights[theirs].float() for name, theirs in NAMES.items()}
    r, h = len(gate["query_norm"]), len(gate["offset"])
    return gate | {
        "of_query": gate["of_query"].unflatten(0, (h, -1, r)),
        "query_offset": gate["query_offset"].unflatten(0, (h, -1, r)),
        "of_key": gate["of_key"].unflatten(0, (h, r)),
        "sink_keys": gate["sink_keys"][:, 0],
        "offset": gate["offset"][:, 0],
    }
