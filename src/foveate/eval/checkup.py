"""What a model's folder lacks for this library to use it: found without loading its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)

from foveate.backends.hf import compress
from foveate.backends.hf.support import model_name
from foveate.errors import FoveateError, MissingPackage
from foveate.eval.model import Source, place_of, read_config, read_reader

INDEX = "model.safetensors.index.json"


class Finding(NamedTuple):
    """One part of a model: whether it is as it should be, what is to be said of it, and the command
    that mends it, if one does.
    """

    part: str
    fine: bool
    said: str
    mend: str = ""


def checkup(name: str, trust_remote_code: bool = False) -> list[Finding]:
    """The configuration, the model that it makes, its weights, and what reads its prompts.

    Args:
        name: a directory, or a model of the hub that has been downloaded.
        trust_remote_code: runs the Python code that comes with it.
    """
    findings = [_tried("configuration", lambda: _source(name, trust_remote_code)[1].model_type)]
    if not findings[0].fine:
        return findings
    source, config = _source(name, trust_remote_code)
    sees = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    kind = "processor" if sees else "tokenizer"
    return [
        *findings,
        _tried("cache", lambda: _compressible(source, config, sees)),
        _weights(Path(source.place)),
        _tried(kind, lambda: type(read_reader(source, sees)).__name__),
    ]


def _source(name: str, trusted: bool) -> tuple[Source, PreTrainedConfig]:
    source = Source(name, place_of(name), trusted)
    return source, read_config(source)


def _tried(part: str, what: Callable[[], str]) -> Finding:
    try:
        return Finding(part, True, what())
    except MissingPackage as error:
        return Finding(part, False, str(error), error.install)
    except FoveateError as error:
        return Finding(part, False, str(error))


def _compressible(source: Source, config: PreTrainedConfig, sees: bool) -> str:
    """That it can be compressed, tried on a model without memory."""
    auto: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config, **source.allowed)
    compress(model, "full")
    return f"{model_name(model)}: can be compressed"


def _weights(folder: Path) -> Finding:
    """Whether all files are there that the index lists, or one where there is none."""
    if not folder.is_dir():
        return Finding("weights", True, "of the hub: not looked for")
    index = folder / INDEX
    if index.is_file():
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    else:
        kinds = ("*.safetensors", "pytorch_model*.bin")
        names = {path.name for kind in kinds for path in folder.glob(kind)}
    lacking = sorted(name for name in names if not (folder / name).is_file())
    if not names or lacking:
        what = (
            f"{len(lacking)} of {len(names)} files are missing: {lacking[0]}" if names else "none"
        )
        return Finding("weights", False, f"{what}. Download the model whole.")
    size = sum((folder / name).stat().st_size for name in names)
    return Finding("weights", True, f"{size / 1e9:,.1f} GB in {len(names)} file(s)")
