"""Writer of a converted model; a failed run leaves nothing."""

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
"""Maximum bytes per file of weights."""


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty directory beside ``target`` that becomes ``target`` at the end of the block.
    It is removed if the block raises; leftovers of a killed run are removed the next time.

    Raises:
        InvalidParameter: ``target`` exists and is not an empty directory.
        CannotWrite: the disk is full, or the folder is not writable.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidParameter(
            f"{str(target)!r} exists already and is not overwritten. Give a new directory."
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


def write(plan: ConversionPlan, folder: Path, shard_bytes: int = SHARD) -> None:
    """Write all files of a model into an empty directory.

    Raises:
        InvalidInput: the weights do not match the configuration.
        ModelNotFound: a file of weights is missing or damaged.
        CannotWrite: the disk is full, for example.
    """
    originals = chain.from_iterable(tensors(source) for source in plan.sources)
    weights = checked(renamed(originals, plan.rules), _shapes(plan))
    _save(weights, folder, shard_bytes)
    plan.config.architectures = [plan.model.__name__]
    plan.config.save_pretrained(folder)
    settings = GenerationConfig(**plan.generation)  # type: ignore[no-untyped-call]
    settings.save_pretrained(folder)
    plan.processor.save_pretrained(folder)


def _shapes(plan: ConversionPlan) -> dict[str, torch.Size]:
    """Return the shapes of all weights of the model, without allocating it."""
    with torch.device("meta"):
        model = plan.model(plan.config)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _save(weights: Iterable[tuple[str, Tensor]], folder: Path, shard_bytes: int) -> None:
    """Write the weights to one file, or to shards with an index, for ``from_pretrained``."""
    weight_map: dict[str, str] = {}
    size = 0
    for number, shard in enumerate(_shards(weights, shard_bytes), start=1):
        name = f"model-{number:05}.safetensors"
        _save_shard(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
        size += sum(tensor.nbytes for tensor in shard.values())
    if number == 1:
        (folder / name).rename(folder / "model.safetensors")
        return
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), "utf-8")


def _save_shard(shard: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise CannotWrite(f"{str(path)!r} cannot be written: {error}. Free disk space.") from error


def _shards(weights: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.clone(memory_format=torch.contiguous_format)  # parts share storage
        size += tensor.nbytes
    yield shard
