"""Profiles as tests need them: some numbers of a method, in a file."""

import torch

from foveate.methods.fast_kvzip import Gate
from foveate.policies.gathering import GATHERINGS, targets_of
from foveate.profiles.profile import Profile
from foveate.profiles.tensor_profile import TensorProfile


def saved(folder, method, numbers, model="tiny", budget=""):
    """The file ``method.json`` of that folder: a number for each layer, or for each KV head."""
    return Profile(
        method=method,
        model=model,
        layers=len(numbers),
        samples=1,
        budget=budget,
        by_layer=numbers,
    ).save(folder / f"{method}.json")


def saved_tensors(folder, method, by_layer, model="tiny", weights=""):
    """The file ``method.safetensors`` of that folder: of each layer the tensors by name."""
    return TensorProfile(
        method=method,
        model=model,
        layers=len(by_layer),
        samples=1,
        budget="",
        weights=weights,
        target=next(iter(targets_of(GATHERINGS[method])), ""),
        by_layer=by_layer,
    ).save(folder / f"{method}.safetensors")


def tensors_of(method, heads, channels, query_heads=None, hidden=5):
    """Those of one layer, of a method whose profile holds tensors: any numbers."""
    if method == "q_filters":
        return {"filters": torch.randn(heads, channels)}
    if method == "kvzap":
        of_pairs = {name: torch.randn(heads, channels) for name in ("of_key", "of_value")}
        return {**of_pairs, "offset": torch.randn(heads) - 4}
    hq, pairs = query_heads or heads, channels // 2
    if method == "fast_kvzip":
        h, g, r = heads, hq // heads, 4
        shapes = (h, g, r, hidden), (h, g, r), (h, r, hidden), (r,), (r,), (h, 3, r), (h, g)
        return Gate(*map(torch.randn, shapes))._asdict()
    return {
        "centre": torch.randn(hq, channels),
        "length": torch.rand(hq, pairs) + 2,
        "frequencies": torch.tensor([0.5**i for i in range(pairs)]),
        "pairs": torch.arange(2 * pairs).view(2, pairs),
    }
