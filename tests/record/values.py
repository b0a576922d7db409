"""Outcomes as short fields of JSON, and their comparison on one machine or between two."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-5
"""Allowed difference of floats between machines, absolute and relative."""

Field = str | int | None | dict[str, Any]
_SAMPLES, _LONGEST, _LONGEST_MESSAGE = 6, 300, 1000

# What goes by the clock, the memory or the machine: last parts of a path, and any part of it.
_VOLATILE = re.compile(
    r"(_s|_ms|_per_token|_per_s|_ratio|peak_bytes|processor|cores|threads|accelerators|triton|device"
    r"|sha256|digest|rows\.jsonl\.bytes)[\[\]#]*$|\b(versions|extras)\."
)
_WORDS = {
    re.compile(r"0x[0-9a-f]{6,}"): "ADDRESS",
    re.compile(r"\b\d+\.\d+\.\d+(\+\w+)?\b"): "VERSION",
    re.compile(r"\d+(\.\d+)?(e-?\d+)?[ \u00a0]?(ms|s|seconds|tokens/s)\b"): "TIME",
}


def normalised(text: str, places: dict[str, str]) -> str:
    """Replace paths, durations, versions and addresses by words that never change."""
    for place, word in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(place, word)
    for pattern, word in _WORDS.items():
        text = pattern.sub(word, text)
    return text


def fields(value: Any, places: dict[str, str]) -> dict[str, Field]:
    """Flatten nested values to one field per path; all entries of a list share a path."""
    leaves: defaultdict[str, list[Any]] = defaultdict(list)
    _walk(value, "", leaves)
    return {path: _field(path, leaves[path], places) for path in sorted(leaves)}


def _walk(value: Any, path: str, leaves: dict[str, list[Any]]) -> None:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _walk(inner, f"{path}.{key}" if path else str(key), leaves)
    elif isinstance(value, list | tuple):
        for inner in value:
            _walk(inner, f"{path}[]", leaves)
        leaves[f"{path}#"].append(len(value))
    elif not (isinstance(value, Tensor) and value.numel() == 0):
        leaves[path].append(value)


def _field(path: str, leaves: list[Any], places: dict[str, str]) -> Field:
    if _VOLATILE.search(path):
        return "volatile"
    if any(isinstance(leaf, Tensor) for leaf in leaves):
        return _tensors([torch.as_tensor(leaf) for leaf in leaves])
    if {type(leaf) for leaf in leaves} in ({float}, {float, int}, {float, type(None)}):
        exact = [math.nan if leaf is None else leaf for leaf in leaves]
        return _tensors([torch.tensor(exact, dtype=torch.float64)])
    texts = [normalised(x, places) if isinstance(x, str) else x for x in leaves]
    plain = len(texts) == 1 and isinstance(texts[0], str | int | None)
    value = texts[0] if plain else json.dumps(texts, default=str)
    longest = _LONGEST_MESSAGE if path in ("message", "err") else _LONGEST
    if not isinstance(value, str) or len(value) <= longest:
        return value
    return {
        "of": f"{len(texts)} values, {len(value)} letters",
        "hash": content_hash(value.encode()),
    }


def _tensors(tensors: list[Tensor]) -> dict[str, Any]:
    """Describe tensors by type, shape and a hash; floats also by a few of their numbers."""
    tensors = [each.detach().cpu().contiguous().flatten() for each in tensors]
    digest = content_hash(b"".join(each.view(torch.uint8).numpy().tobytes() for each in tensors))
    description = f"{len(tensors)} {str(tensors[0].dtype)[6:]} {sum(map(len, tensors))}"
    if not tensors[0].is_floating_point():
        return {"of": description, "hash": digest}
    flat = torch.cat([each.double() for each in tensors])
    finite = flat[flat.isfinite()].abs()
    chosen = flat[torch.linspace(0, len(flat) - 1, min(_SAMPLES, len(flat))).long()]
    # the mean size sees a change of any number, the samples one of some
    near = [float(finite.mean()) if len(finite) else 0.0, *chosen.tolist()]
    return {"of": description, "bits": digest, "near": " ".join(f"{x:.8g}" for x in near)}


def content_hash(content: bytes) -> str:
    """Return a short hash."""
    return hashlib.sha256(content).hexdigest()[:12]


def same(old: Any, new: Any, exact: bool) -> bool:
    """Compare two fields: to the bit, or floats to `TOLERANCE`."""
    floats = isinstance(old, dict) and isinstance(new, dict) and "near" in old and "near" in new
    if exact or not floats:
        return bool(old == new)
    a, b = (list(map(float, field["near"].split())) for field in (old, new))
    return old["of"] == new["of"] and all(_near(*pair) for pair in zip(a, b, strict=True))


def _near(a: float, b: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return repr(a) == repr(b)
    return abs(a - b) <= TOLERANCE * max(1.0, abs(a))


def shown(field: Any) -> str:
    """Print a field in a line."""
    text = (field if isinstance(field, str) else json.dumps(field)).replace("\n", "\\n")
    return text if len(text) <= 160 else f"{text[:157]}..."
