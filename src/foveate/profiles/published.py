"""Files of layers and of redundancies, as PrefixKV's and MixKV's authors publish them."""

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
"""Reads the share of a prompt that each layer keeps; raises InvalidInput for what is no such file.
"""
LAYER_FILES: Registry[LayerFile] = Registry()
"""By the name of the method."""
ROUNDED = 1.001  # the most that a mean of cosines comes to in half precision


def read_forgotten(path: str | Path) -> list[float]:
    """Of a JSON list, ``confs/prefixkv_MODEL_FORGOTTEN.json``: a number a layer, the share of the
    prompt that it forgets, from 0 to 1. Given back is what is kept.

    Raises:
        InvalidInput: no such file, or no such list.
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
    """How redundant the keys of every KV head are, in float64, and of how many samples it is the
    mean: of a JSON object that maps "layer-head-key" to a list, a number a sample
    (``qwen_kv_similarity.json``; "layer-head-value" is left aside), or of a list of layers with a
    number a head (``key_avg_scores.json``). They are held within 0 and 1.

    Raises:
        InvalidInput: no such file, no such table, or one that lacks a head.
    """
    redundancies = read_json(Path(path))
    if isinstance(redundancies, dict):
        keys = {name: value for name, value in redundancies.items() if name.endswith("-key")}
        rows, samples = _rows(keys), max((len(_listed(x)) for x in keys.values()), default=0)
    else:
        rows, samples = [[_number(x) for x in _listed(row)] for row in _listed(redundancies)], 1
    whole = not any(math.isnan(x) for row in rows for x in row)
    if not samples or not rows or not rows[0] or not whole or len({len(row) for row in rows}) > 1:
        raise InvalidInput(
            f"{path} holds no redundancies of heads; expected a JSON object such as "
            '{"0-0-key": [0.99, ...], "0-1-key": ...}, layer and KV head, or a list of layers with '
            "a number from -1 to 1 for each KV head."
        )
    return torch.tensor(rows, dtype=torch.float64, device="cpu").clamp(0, 1), samples


def _rows(record: dict[str, Any]) -> list[list[float]]:
    """By layer and head; NaN where one is missing, or has no numbers."""
    means = {}
    for name, values in record.items():
        if place := re.fullmatch(r"(\d{1,4})-(\d{1,4})-key", name):
            numbers = [_number(x) for x in _listed(values)]
            mean = sum(numbers) / len(numbers) if numbers else math.nan
            means[int(place[1]), int(place[2])] = mean
    layers, heads = (1 + max((place[i] for place in means), default=-1) for i in (0, 1))
    return [[means.get((a, b), math.nan) for b in range(heads)] for a in range(layers)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= ROUNDED else math.nan
