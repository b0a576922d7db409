"""Comparison of a checkpoint's weights with those of the class that loads it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from foveate.errors import ModelNotFound, UnsupportedModel

INDEX = "model.safetensors.index.json"
_KINDS = ("*.safetensors", "pytorch_model*.bin")
_LEFTOVERS = re.compile(
    # buffers that older releases of transformers saved, and new ones compute
    r"(^|\.)(inv_freq|position_ids|masked_bias)$"
    # scales of a quantised KV cache: transformers keeps caches in the model's dtype
    r"|\.[kv]_scale$"
    # multi-token prediction, which drafts tokens and is not part of a forward pass
    r"|(^|\.)mtp(\.|_)"
)
"""Keys that a class may leave unused, beside those that it declares in
``_keys_to_ignore_on_load_unexpected``, because answers do not depend on them."""
_SHOWN = 3


def check_loaded(name: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose weights are not those of the class that loaded it.

    Args:
        name: the model, as the user named it.
        model: the loaded model.
        info: second result of ``from_pretrained(..., output_loading_info=True)``.

    Raises:
        UnsupportedModel: weights that are unused, missing (transformers draws them at random) or of
            another shape.
    """
    kind = type(model).__name__
    if unused := [key for key in info["unexpected_keys"] if not _LEFTOVERS.search(key)]:
        raise UnsupportedModel(
            f"{name!r} loads as {kind}, which leaves {len(unused)} of its weights unused: "
            f"{_parts(unused, model)}. Without them its answers would not be the model's. Name a "
            "model that transformers loads completely as a causal or image-text-to-text model."
        )
    parameters = {key for key, _ in model.named_parameters()}
    if missing := [key for key in info["missing_keys"] if key in parameters]:
        raise UnsupportedModel(
            f"{name!r} loads as {kind} and lacks {len(missing)} of its weights: "
            f"{_parts(missing, model)}. transformers would draw them at random. Name a checkpoint "
            "of the complete model, with its language-model head."
        )
    if wrong := sorted(info["mismatched_keys"], key=str):
        key, stored, expected = wrong[0]
        raise UnsupportedModel(
            f"{name!r} has {len(wrong)} weight(s) of another shape than its config.json says, such "
            f"as {key}: {list(stored)} instead of {list(expected)}. Download the model again."
        )


def check_folder(name: str, model: PreTrainedModel, folder: Path) -> bool:
    """Compare a folder's files as :func:`check_loaded` does, without reading weights.

    Args:
        name: the model, as the user named it.
        model: model built from the folder's configuration, on the "meta" device.
        folder: folder with all files of the checkpoint.

    Returns:
        False if they cannot be compared: quantised weights, or accelerate is not installed.

    Raises:
        UnsupportedModel: see :func:`check_loaded`.
        ModelNotFound: a file that cannot be read.
    """
    quantised = getattr(model.config, "quantization_config", None)
    if quantised or find_spec("accelerate") is None:
        return False
    loader: Any = type(model)
    with silent():
        loaded, info = loader.from_pretrained(
            None,
            config=model.config,
            state_dict=_shapes(folder),
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    check_loaded(name, loaded, info)
    return True


def files_of(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files: those that its index lists, or the weights files of
    the folder. Listed files may not exist.
    """
    index = folder / INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    for kind in _KINDS:  # transformers prefers safetensors if a folder has both
        if names := sorted(path.name for path in folder.glob(kind)):
            return names
    return []


@contextmanager
def silent() -> Iterator[None]:
    """Silence transformers' log while it loads; :func:`check_loaded` reports what matters."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _shapes(folder: Path) -> dict[str, Tensor]:
    """Return the checkpoint's tensors on the "meta" device."""
    tensors: dict[str, Tensor] = {}
    for name in files_of(folder):
        path = folder / name
        try:
            tensors |= _shapes_of_file(path)
        except (OSError, SafetensorError, RuntimeError, UnpicklingError) as error:
            raise ModelNotFound(
                f"the weights file {str(path)!r} cannot be read: {error}. Download it again."
            ) from error
    return tensors


def _shapes_of_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin":
        tensors: dict[str, Tensor] = torch.load(path, map_location="meta", weights_only=True)
        return tensors
    with safe_open(path, framework="pt") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    return {
        key: torch.empty(shape, dtype=torch.float32, device="meta") for key, shape in shapes.items()
    }


def _parts(keys: Iterable[str], model: PreTrainedModel) -> str:
    """Describe the modules that keys belong to, with the number of weights of each."""
    modules = {name for name, _ in model.named_modules()}
    counts = Counter(_part(key, modules) for key in keys).most_common()
    listed = [f"{part} ({count})" for part, count in counts[:_SHOWN]]
    more = [f"{len(counts) - _SHOWN} more parts"] if len(counts) > _SHOWN else []
    return ", ".join([*listed, *more])


def _part(key: str, modules: set[str]) -> str:
    """Return the outermost module of a key that the model lacks, or else the module that has it."""
    names = key.split(".")
    prefixes = [".".join(names[:end]) for end in range(1, len(names))]
    absent = (prefix for prefix in prefixes if prefix not in modules)
    return next(absent, prefixes[-1] if prefixes else key)
