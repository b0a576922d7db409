"""Weights of a directory, tensor by tensor, from safetensors or PyTorch files, sharded or not."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.errors import ModelNotFound

SINGLE = ("model.safetensors", "pytorch_model.bin")


def files(folder: Path) -> list[Path]:
    """Return the files with a model's weights: a single file, or all shards.

    Raises:
        ModelNotFound: no weights, or shards of the index are missing.
    """
    for single in SINGLE:
        if (index := folder / f"{single}.index.json").is_file():
            return _shards(index)
        if (folder / single).is_file():
            return [folder / single]
    raise ModelNotFound(
        f"{str(folder)!r} holds no weights: it has neither {' nor '.join(SINGLE)}, nor an index of "
        "shards of either. Download the whole repository."
    )


def names(folder: Path) -> set[str]:
    """Return the names of all weights. Raises as `files` and `tensors` do."""
    return {name for path in files(folder) for name in _names(path)}


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by name, at most one in memory at a time.

    Raises:
        ModelNotFound: a file is missing or damaged.
    """
    for path in files(folder):
        yield from _tensors(path)


def json_file(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file.

    Raises:
        ModelNotFound: the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{str(path)!r} cannot be read: {error}. Download it again.") from error
    if not isinstance(content, dict):
        raise ModelNotFound(f"{str(path)!r} holds no JSON object. Download it again.")
    return content


def _shards(index: Path) -> list[Path]:
    weight_map = json_file(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelNotFound(f"{str(index)!r} names no shards (weight_map). Download it again.")
    shards = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in shards if not (index.parent / name).is_file()]
    if missing:
        raise ModelNotFound(
            f"{str(index.parent)!r} lacks {len(missing)} of the {len(shards)} shards that "
            f"{index.name} names: {', '.join(missing)}. Download them."
        )
    return [index.parent / name for name in shards]


def _names(path: Path) -> list[str]:
    if path.suffix != ".safetensors":
        return list(_unpickled(path))
    try:
        with safe_open(path, "pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    if path.suffix != ".safetensors":
        yield from _unpickled(path).items()
        return
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dict
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Load tensors only, mapped from the disk; no code of the file runs."""
    try:
        mapped = zipfile.is_zipfile(path)  # files of PyTorch before 1.6 are not zip archives
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}


def _damaged(path: Path, error: Exception) -> ModelNotFound:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelNotFound(
        f"the weights in {str(path)!r} cannot be read: {first}. Download it again."
    )
