"""The weights in a directory, tensor by tensor: safetensors or PyTorch's own files, in shards or
not.
"""

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
    """The files that hold a model's weights, one or all of its shards.

    Raises:
        ModelNotFound: there are none, or some that the index names are missing.
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
    """The names of all weights. Raises what `files` and `tensors` do."""
    return {name for path in files(folder) for name in _names(path)}


def tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All weights by name; no more than one of them is in memory at a time.

    Raises:
        ModelNotFound: a file is missing or damaged.
    """
    for path in files(folder):
        yield from _tensors(path)


def json_file(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file.

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
    places = json_file(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelNotFound(f"{str(index)!r} names no shards (weight_map). Download it again.")
    shards = sorted({str(name) for name in places.values()})
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
    """Tensors alone, mapped from the disk: no code of the file is run."""
    try:
        mapped = zipfile.is_zipfile(path)  # files of PyTorch before 1.6 are not
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise _damaged(path, error) from error
    return {name: one for name, one in content.items() if isinstance(one, Tensor)}


def _damaged(path: Path, error: Exception) -> ModelNotFound:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelNotFound(
        f"the weights in {str(path)!r} cannot be read: {first}. Download it again."
    )
