"""A model without its weights: made from config.json alone, on no device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, PreTrainedConfig, PreTrainedModel

from foveate.defaults import DtypeName
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.loading.lacking import missing_package
from foveate.loading.model import Source, has_vision, is_shipped, opened, outline, without_weights


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


def _model(source: Source, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    if config.is_encoder_decoder:  # transformers may have a class for its decoder alone
        raise UnsupportedModel(
            f"{source.name!r} is an encoder-decoder model ({config.model_type}): only models that "
            "are a decoder, or a decoder with a vision tower, are counted."
        )
    model = without_weights(source, config, dtype=dtype)
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def _processor(source: Source) -> Any:
    """What makes pixels of images, or why there is none."""
    try:
        reader: Any = AutoImageProcessor
        return reader.from_pretrained(source.place, **source.allowed)
    except (AttributeError, ImportError, OSError, ValueError) as error:
        lacking = missing_package("it", error, source.place)
        if lacking:
            return f"its image processor: {lacking}"
        return "there is no preprocessor_config.json beside config.json that transformers can read"
