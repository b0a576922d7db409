"""A model without its weights, built from config.json alone on the "meta" device; and the size of
its weights, also of quantised ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoImageProcessor, PreTrainedConfig, PreTrainedModel

from foveate.defaults import DtypeName
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.loading.checkpoint import INDEX
from foveate.loading.model import (
    ModelSource,
    find_model,
    has_vision,
    is_shipped,
    outline,
    without_weights,
)
from foveate.loading.requirements import missing_package
from foveate.memory.request import Unknown


@dataclass(frozen=True)
class Bare:
    """A model on the "meta" device, with its image processor.

    ``processor`` is a string with the reason if there is no image processor.
    """

    name: str
    model: PreTrainedModel
    dtype: torch.dtype
    processor: Any
    folder: Path | None = None

    @property
    def config(self) -> PreTrainedConfig:
        """Configuration of the model."""
        config: PreTrainedConfig = self.model.config
        return config

    @property
    def sees(self) -> bool:
        """True if the model takes images."""
        return has_vision(self.config)


def bare(name: str, dtype: DtypeName = "auto", trust_remote_code: bool = False) -> Bare:
    """Build a model without weights, named as for ``foveate run --model``.

    Args:
        name: a directory, a downloaded model of the hub, or a model that ships with Foveate.
        dtype: dtype of the weights; "auto" takes config.json's.
        trust_remote_code: run the Python code that comes with the model.

    Raises:
        ModelNotFound: no config.json there.
        UnsupportedModel: transformers cannot build it, or it is an encoder-decoder model.
        InvalidInput: "auto", but config.json names no dtype.
    """
    if is_shipped(name):
        loaded = outline(name)
        model = loaded.model.to("meta")  # type: ignore[arg-type]
        if dtype != "auto":
            model = model.to(getattr(torch, dtype))

        def processor(images: list[Any], **options: Any) -> Any:  # takes images only with text
            return loaded.reader(images=images, text="<image>" * len(images), **options)

        return Bare(name, model, model.dtype, processor if loaded.sees else "")
    source, config = find_model(name, trust_remote_code)
    weights_dtype = _dtype(name, config, dtype)
    folder = Path(source.location)
    model = _model(source, config, weights_dtype)
    return Bare(name, model, weights_dtype, _processor(source), folder if folder.is_dir() else None)


def _dtype(name: str, config: PreTrainedConfig, requested: DtypeName) -> torch.dtype:
    if requested != "auto":
        return getattr(torch, requested)  # type: ignore[no-any-return]
    text = config.get_text_config(decoder=True)
    dtype = getattr(config, "dtype", None) or getattr(text, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidInput(
            f"the configuration of {name!r} does not say of which dtype its weights are. Give one: "
            "--dtype bfloat16."
        )
    return dtype


def _model(source: ModelSource, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    if config.is_encoder_decoder:  # else transformers might build its decoder alone
        raise UnsupportedModel(
            f"{source.name!r} is an encoder-decoder model ({config.model_type}): only models that "
            "are a decoder, or a decoder with a vision tower, are counted."
        )
    model = without_weights(source, config, dtype=dtype)
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def _processor(source: ModelSource) -> Any:
    """Return the image processor, or a string with the reason why there is none."""
    try:
        reader: Any = AutoImageProcessor
        return reader.from_pretrained(source.location, **source.allowed)
    except (AttributeError, ImportError, OSError, ValueError) as error:
        lacking = missing_package("it", error, source.location)
        if lacking:
            return f"its image processor: {lacking}"
        return "there is no preprocessor_config.json beside config.json that transformers can read"


_GROUP = 128  # weights that share a scale, unless a configuration sets another number
_NF4 = 64
_SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore")
_IN_BLOCKS = ("gptq", "awq")  # methods that quantise only the decoder's layers


class Weights(NamedTuple):
    """Weights of a model: number of parameters, bytes, and storage format (``held``)."""

    parameters: int
    bytes: int
    held: str


def weights(bare: Bare) -> Weights:
    """Measure the weights of a model, including buffers; tied weights count once.

    Raises:
        Unknown: an unknown method of quantisation, and no index of the files that has their size.
    """
    model = bare.model
    quantisation: Any = getattr(bare.config, "quantization_config", None) or {}
    if not isinstance(quantisation, Mapping):
        quantisation = quantisation.to_dict()
    plain = _bytes(model, lambda name, linear: None)
    parameters = sum(tensor.numel() for tensor in model.parameters())
    if not quantisation:
        return Weights(parameters, plain, str(bare.dtype).removeprefix("torch."))
    method = str(quantisation.get("quant_method", ""))
    if (stored := _stored(bare.folder)) is not None:
        return Weights(parameters, stored, f"{method}, as its files are")
    return Weights(parameters, _bytes(model, _coder(model, method, quantisation)), method)


def in_four_bits(model: PreTrainedModel) -> int:
    """Return the bytes of the weights with all linear layers except the last in 4 bits, as
    bitsandbytes stores them (nf4).
    """
    quantisation = {"load_in_4bit": True}
    return _bytes(model, _coder(model, "bitsandbytes", quantisation))


def _stored(folder: Path | None) -> int | None:
    """Return the bytes of all tensors from the index of a folder's files; None without one."""
    if folder is None or not (folder / INDEX).is_file():
        return None
    size = json.loads((folder / INDEX).read_text("utf-8")).get("metadata", {}).get("total_size")
    return int(size) if size else None


Coder = Callable[[str, nn.Linear], int | None]
"""Function of a layer's name and module: bytes of its codes and scales, None if not quantised."""


def _bytes(model: PreTrainedModel, coder: Coder) -> int:
    coded = 0
    seen = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (size := coder(name, module)) is not None:
            coded += size
            seen.add(id(module.weight))
    rest = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return coded + sum(tensor.nbytes for key, tensor in rest.items() if key not in seen)


def _coder(model: PreTrainedModel, method: str, quantisation: Mapping[str, Any]) -> Coder:
    size = _size(method, quantisation)
    skipped = [name for key in _SKIPPED for name in quantisation.get(key) or ()]
    last: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    decoder = find(model, text_config(model)).decoder
    inside = set(decoder.modules()) if method in _IN_BLOCKS else None

    def coder(name: str, linear: nn.Linear) -> int | None:
        named = any(part in name for part in skipped)
        outside = inside is not None and linear not in inside
        return None if named or outside or linear is last else size(linear)

    return coder


def _size(method: str, quantisation: Mapping[str, Any]) -> Callable[[nn.Linear], int]:
    """Return a function for the bytes of a linear layer's codes, scales and zeros."""
    if method == "bitsandbytes" and quantisation.get("load_in_8bit"):
        return lambda linear: linear.weight.numel() + 4 * linear.out_features
    if method == "bitsandbytes" and quantisation.get("load_in_4bit"):
        twice = bool(quantisation.get("bnb_4bit_use_double_quant"))
        scale = 1 + 4 / 256 if twice else 4.0
        return lambda linear: math.ceil(linear.weight.numel() * (0.5 + scale / _NF4))
    if method in _IN_BLOCKS:
        bits = int(quantisation.get("bits") or quantisation.get("w_bit") or 4)
        group = int(quantisation.get("group_size") or quantisation.get("q_group_size") or _GROUP)
        return lambda linear: _grouped(linear, bits, group, order=method == "gptq")
    if method == "fp8":
        rows, columns = quantisation.get("weight_block_size") or (_GROUP, _GROUP)
        return lambda linear: (
            linear.weight.numel()
            + 4 * math.prod((-(-linear.out_features // rows), -(-linear.in_features // columns)))
        )
    raise Unknown(f"its configuration quantises weights by {method or 'a method without a name'}")


def _grouped(linear: nn.Linear, bits: int, group: int, order: bool) -> int:
    """Return the bytes of codes in groups, each with a 16-bit scale and a zero; with ``order`` also
    the group of each column.
    """
    across = linear.in_features
    groups = 1 if group < 0 else -(-across // group)
    codes = linear.weight.numel() * bits // 8
    return codes + linear.out_features * groups * (16 + bits) // 8 + order * 4 * across
