"""A model without its weights: made from config.json alone, on no device; and what its weights
take, also where its configuration says that they are quantised.
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
from foveate.loading.lacking import missing_package
from foveate.loading.model import (
    ModelSource,
    has_vision,
    is_shipped,
    opened,
    outline,
    without_weights,
)
from foveate.memory.request import Unknown


@dataclass(frozen=True)
class Bare:
    """A model on the "meta" device, and what makes pixels of images.

    ``processor`` is the image processor, or the sentence that says why there is none.
    """

    name: str
    model: PreTrainedModel
    dtype: torch.dtype
    processor: Any
    folder: Path | None = None

    @property
    def config(self) -> PreTrainedConfig:
        """The model's."""
        config: PreTrainedConfig = self.model.config
        return config

    @property
    def sees(self) -> bool:
        """Whether it takes images."""
        return has_vision(self.config)


def bare(name: str, dtype: DtypeName = "auto", trust_remote_code: bool = False) -> Bare:
    """The model of that name, as ``foveate run --model`` takes it, without weights.

    Args:
        name: a directory, a model of the hub that has been downloaded, or one that comes along.
        dtype: of the weights; "auto" is what config.json says.
        trust_remote_code: runs the Python code that comes with it.

    Raises:
        ModelNotFound: no config.json at that place.
        UnsupportedModel: transformers cannot make it, or it is an encoder-decoder model.
        InvalidInput: config.json does not say the weights' dtype, and none is given.
    """
    if is_shipped(name):
        loaded = outline(name)
        model = loaded.model.to("meta")  # type: ignore[arg-type]
        if dtype != "auto":
            model = model.to(getattr(torch, dtype))

        def processor(images: list[Any], **options: Any) -> Any:  # takes them beside a text alone
            return loaded.reader(images=images, text="<image>" * len(images), **options)

        return Bare(name, model, model.dtype, processor if loaded.sees else "")
    source, config = opened(name, trust_remote_code)
    made = _dtype(name, config, dtype)
    folder = Path(source.place)
    model = _model(source, config, made)
    return Bare(name, model, made, _processor(source), folder if folder.is_dir() else None)


def _dtype(name: str, config: PreTrainedConfig, wanted: DtypeName) -> torch.dtype:
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    text = config.get_text_config(decoder=True)
    dtype = getattr(config, "dtype", None) or getattr(text, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidInput(
            f"the configuration of {name!r} does not say of which dtype its weights are. Give one: "
            "--dtype bfloat16."
        )
    return dtype


def _model(source: ModelSource, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    if config.is_encoder_decoder:  # transformers may have a class for its decoder alone
        raise UnsupportedModel(
            f"{source.name!r} is an encoder-decoder model ({config.model_type}): only models that "
            "are a decoder, or a decoder with a vision tower, are counted."
        )
    model = without_weights(source, config, dtype=dtype)
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def _processor(source: ModelSource) -> Any:
    """What makes pixels of images, or why there is none."""
    try:
        reader: Any = AutoImageProcessor
        return reader.from_pretrained(source.place, **source.allowed)
    except (AttributeError, ImportError, OSError, ValueError) as error:
        lacking = missing_package("it", error, source.place)
        if lacking:
            return f"its image processor: {lacking}"
        return "there is no preprocessor_config.json beside config.json that transformers can read"


_GROUP = 128  # weights that share a scale, where a configuration names no other number
_NF4 = 64
_SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore")
_IN_BLOCKS = ("gptq", "awq")  # methods that leave what is no layer of the decoder as it is


class Weights(NamedTuple):
    """Numbers of a model, what they take in bytes, and how they are held."""

    parameters: int
    bytes: int
    held: str


def weights(bare: Bare) -> Weights:
    """The weights of a model, buffers included; tied ones once.

    Raises:
        Unknown: its configuration asks for codes of a kind that is not known here, and no index of
            the files tells how many bytes they are.
    """
    model = bare.model
    quantisation: Any = getattr(bare.config, "quantization_config", None) or {}
    if not isinstance(quantisation, Mapping):
        quantisation = quantisation.to_dict()
    plain = _bytes(model, lambda name, linear: None)
    parameters = sum(one.numel() for one in model.parameters())
    if not quantisation:
        return Weights(parameters, plain, str(bare.dtype).removeprefix("torch."))
    method = str(quantisation.get("quant_method", ""))
    if (stored := _stored(bare.folder)) is not None:
        return Weights(parameters, stored, f"{method}, as its files are")
    return Weights(parameters, _bytes(model, _coder(model, method, quantisation)), method)


def in_four_bits(model: PreTrainedModel) -> int:
    """Bytes with all linear layers but the last in 4 bits, as bitsandbytes holds them (nf4)."""
    quantisation = {"load_in_4bit": True}
    return _bytes(model, _coder(model, "bitsandbytes", quantisation))


def _stored(folder: Path | None) -> int | None:
    """Bytes of all tensors, as the index of a folder's files says."""
    if folder is None or not (folder / INDEX).is_file():
        return None
    size = json.loads((folder / INDEX).read_text("utf-8")).get("metadata", {}).get("total_size")
    return int(size) if size else None


Coder = Callable[[str, nn.Linear], int | None]
"""Bytes of a linear layer's codes and scales; None of one that is held as it is."""


def _bytes(model: PreTrainedModel, coder: Coder) -> int:
    coded = 0
    seen = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (size := coder(name, module)) is not None:
            coded += size
            seen.add(id(module.weight))
    rest = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return coded + sum(one.nbytes for key, one in rest.items() if key not in seen)


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
    """Bytes of a linear layer's codes, with their scales and zeros."""
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
    """Codes, and for each group of a row a scale in 16 bits and a zero; ``order``: to which group
    each column belongs.
    """
    across = linear.in_features
    groups = 1 if group < 0 else -(-across // group)
    codes = linear.weight.numel() * bits // 8
    return codes + linear.out_features * groups * (16 + bits) // 8 + order * 4 * across
