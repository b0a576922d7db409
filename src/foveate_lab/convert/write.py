"""Writes a converted model, whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig

from foveate.data.files import reporting
from foveate.errors import CannotWrite, InvalidParameter
from foveate_lab.convert.plan import ConversionPlan
from foveate_lab.convert.rules import checked, renamed
from foveate_lab.convert.weights import tensors

SHARD = 4 * 2**30
"""The most bytes of a file of weights."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """The path of an empty directory beside ``target``. It becomes ``target`` when the block ends,
    and is removed when it raises; what a kill leaves of it is removed the next time.

    Raises:
        InvalidParameter: there is something at that place.
        CannotWrite: the disk or the folder does not take it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidParameter(
            f"{str(target)!r} is there already, and is left as it is. Give a new directory."
        )
    part = target.with_name(f".{target.name}-new")
    with reporting(target):
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            yield part
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def write(plan: ConversionPlan, folder: Path, most: int = SHARD) -> None:
    """Writes all of a model's files into an empty directory.

    Raises:
        InvalidInput: the weights are not those that the configuration tells of.
        ModelNotFound: a file of weights is missing or damaged.
        CannotWrite: the disk is full, for example.
    """
    originals = chain.from_iterable(tensors(source) for source in plan.sources)
    weights = checked(renamed(originals, plan.rules), _shapes(plan))
    _save(weights, folder, most)
    plan.config.architectures = [plan.model.__name__]
    plan.config.save_pretrained(folder)
    settings = GenerationConfig(**plan.generation)  # type: ignore[no-untyped-call]
    settings.save_pretrained(folder)
    plan.processor.save_pretrained(folder)


def _shapes(plan: ConversionPlan) -> dict[str, torch.Size]:
    """Of all weights that the model has, without making it."""
    with torch.device("meta"):
        model = plan.model(plan.config)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _save(weights: Iterable[tuple[str, Tensor]], folder: Path, most: int) -> None:
    """The weights in one file, or in several with an index, as ``from_pretrained`` reads them."""
    places: dict[str, str] = {}
    size = 0
    for number, shard in enumerate(_shards(weights, most), start=1):
        name = f"model-{number:05}.safetensors"
        _save_shard(shard, folder / name)
        places |= dict.fromkeys(shard, name)
        size += sum(tensor.nbytes for tensor in shard.values())
    if number == 1:
        (folder / name).rename(folder / "model.safetensors")
        return
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")


def _save_shard(shard: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise CannotWrite(f"{str(path)!r} cannot be written: {error}. Make room.") from error


def _shards(weights: Iterable[tuple[str, Tensor]], most: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if shard and size + tensor.nbytes > most:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.clone(memory_format=torch.contiguous_format)  # parts share a storage
        size += tensor.nbytes
    yield shard
