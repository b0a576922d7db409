"""Readers of files that authors publish: PrefixKV's layers and MixKV's redundancies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.data.texts import read_json
from foveate.errors import InvalidInput
from foveate.policies.registry import Registry

LayerFile = Callable[[str | Path], list[float]]
"""Function that reads the share of a prompt that each layer keeps; raises InvalidInput."""
LAYER_FILES: Registry[LayerFile] = Registry()
"""Readers by the name of the method."""
ROUNDED = 1.001  # largest mean of cosines after rounding in half precision


def read_forgotten(path: str | Path) -> list[float]:
    """Read the share of a prompt that each layer keeps, from a JSON list of shares that it forgets.

    Such files are ``confs/prefixkv_MODEL_FORGOTTEN.json``.

    Raises:
        InvalidInput: the file does not exist, or is no such list.
    """
    forgotten = read_json(Path(path))
    shares = [_number(x) for x in forgotten] if isinstance(forgotten, list) else []
    if not shares or not all(0 <= x < 1 for x in shares):
        raise InvalidInput(
            f"{path} holds no shares of layers; expected a JSON list such as [0.28, 0.43, ...], "
            "the share of the prompt that each layer forgets, from 0 to below 1."
        )
    return [1 - x for x in shares]


def read_redundancies(path: str | Path) -> tuple[Float[Tensor, "L h"], int]:
    """Read the redundancy of the keys of every KV head.

    The file is a JSON object that maps "layer-head-key" to a number per sample
    (``qwen_kv_similarity.json``; "layer-head-value" is ignored), or a list of layers with a number
    per head (``key_avg_scores.json``).

    Returns:
        Redundancies in float64, clamped to [0, 1], and the number of samples that they are the mean
        of.

    Raises:
        InvalidInput: the file does not exist, is no such table, or lacks a head.
    """
    redundancies = read_json(Path(path))
    if isinstance(redundancies, dict):
        keys = {name: value for name, value in redundancies.items() if name.endswith("-key")}
        rows, samples = _rows(keys), max((len(_listed(x)) for x in keys.values()), default=0)
    else:
        rows, samples = [[_number(x) for x in _listed(row)] for row in _listed(redundancies)], 1
    is_complete = not any(math.isnan(x) for row in rows for x in row)
    if (
        not samples
        or not rows
        or not rows[0]
        or not is_complete
        or len({len(row) for row in rows}) > 1
    ):
        raise InvalidInput(
            f"{path} holds no redundancies of heads; expected a JSON object such as "
            '{"0-0-key": [0.99, ...], "0-1-key": ...}, layer and KV head, or a list of layers with '
            "a number from -1 to 1 for each KV head."
        )
    return torch.tensor(rows, dtype=torch.float64, device="cpu").clamp(0, 1), samples


def _rows(record: dict[str, Any]) -> list[list[float]]:
    """Return the mean by layer and head; NaN if one is missing, or has no numbers."""
    means = {}
    for name, values in record.items():
        if key := re.fullmatch(r"(\d{1,4})-(\d{1,4})-key", name):
            numbers = [_number(x) for x in _listed(values)]
            mean = sum(numbers) / len(numbers) if numbers else math.nan
            means[int(key[1]), int(key[2])] = mean
    layers, heads = (1 + max((key[i] for key in means), default=-1) for i in (0, 1))
    return [[means.get((a, b), math.nan) for b in range(heads)] for a in range(layers)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= ROUNDED else math.nan
