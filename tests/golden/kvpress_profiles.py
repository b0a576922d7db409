"""What kvpress had measured, loaded or been told of a model's heads, as our profiles."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from foveate.profiles.profile import SCHEMA, Profile

from .kvpress_rows import Row
from .vectors import load

OUTLIERS = 4  # first tokens whose queries kvpress leaves out


def written(row: Row, folder: str) -> str:
    """The path of the profile that a row's spec reads, if it reads one."""
    path, given = Path(folder) / "profile", load(f"kvpress_{row.press}")[0]
    about = {"method": row.spec.split(":")[0], "model": "", "samples": 1, "budget": ""}
    if row.profile == "heads":
        scores = given["heads"].tolist()
        Profile(layers=len(scores), by_layer=scores, **about).save(path)
    elif row.profile:
        named = TENSORS[row.profile](given)
        layers = len(next(iter(named.values())))
        note = {key: str(value) for key, value in about.items()}
        note |= {"schema": SCHEMA, "layers": str(layers), "target": row.target}
        save_file(
            {f"{k}.{i}": t[i].contiguous() for k, t in named.items() for i in range(layers)},
            path,
            note,
        )
    return str(path)


def filters(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which kvpress has with the opposite sign."""
    return {"filters": -given["filters"]}


def surrogate(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The maps of keys and values that kvpress's maps of hidden states were made of."""
    return {name: given[name] for name in ("of_key", "of_value", "offset")}


def statistics(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that kvpress was given."""
    return {"mean": given["mean"], "covariance": given["covariance"]} | rotation(len(given["mean"]))


def own_statistics(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of the prompt's queries before the rotation."""
    q = load("kvpress_inputs")[0]["q_before"][:, :, OUTLIERS:]
    off = q - q.mean(2, keepdim=True)
    spread = off.transpose(2, 3) @ off / q.shape[2]
    return {"mean": q.mean(2), "covariance": spread} | rotation(len(q))


def rotation(layers: int) -> dict[str, Tensor]:
    """Of every layer: pairs of channels half a head apart, and how far a position turns them."""
    inputs, _ = load("kvpress_inputs")
    half = inputs["cos"].shape[1] // 2
    angles = torch.atan2(inputs["sin"][1, :half], inputs["cos"][1, :half])
    pairs = torch.arange(2 * half).view(2, half)
    return {"frequencies": angles.repeat(layers, 1), "pairs": pairs.repeat(layers, 1, 1)}


TENSORS = {
    "filters": filters,
    "statistics": statistics,
    "own_statistics": own_statistics,
    "surrogate": surrogate,
}
