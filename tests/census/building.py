"""Builds the tiny models by the names of their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import transformers
from huggingface_hub import dataclasses
from transformers.models.auto import modeling_auto

from . import families
from .shrink import shrunk
from .sizes import PAD
from .specimen import Entry, NotBuilt, Specimen
from .weights import randomise

_IMAGE_TEXT: dict[str, Any] = dict(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
_CAUSAL: dict[str, Any] = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

IMAGE_TEXT: tuple[str, ...] = tuple(sorted(_IMAGE_TEXT))
"""Every type the installed transformers maps to a model of images and text."""

TEXT: tuple[str, ...] = tuple(name for name in families.TEXT if name in _CAUSAL)
"""The most used text types, as far as they exist here."""


def build(model_type: str) -> Specimen:
    """The tiny model of a type, with its inputs.

    Raises:
        NotBuilt: If there is none; the message says why.
    """
    entry = families.ENTRIES.get(model_type, Entry())
    if entry.reason is not None:
        raise NotBuilt(entry.reason)
    with torch.random.fork_rng(devices=[]), _stand_in(entry.tower):
        torch.manual_seed(0)
        model = _model(model_type, entry)
    randomise(model, model_type)
    if entry.prepare is not None:
        entry.prepare(model)
    return _probed(Specimen(model_type, _settled(model), entry))


def _model(model_type: str, entry: Entry) -> Any:
    """The model as upstream initialises it."""
    name = (_IMAGE_TEXT if model_type in _IMAGE_TEXT else _CAUSAL).get(model_type)
    if name is None:
        raise NotBuilt(f"transformers {transformers.__version__} has no type {model_type}")
    name = name if isinstance(name, str) else name[0]
    config_class = transformers.CONFIG_MAPPING[model_type]
    _accept_old_types(config_class)
    try:
        return _made(model_type, name, entry)
    except Exception as error:
        raise NotBuilt(f"it cannot be built: {_line(error)}") from error


def _made(model_type: str, name: str, entry: Entry) -> Any:
    config = shrunk(transformers.CONFIG_MAPPING[model_type], entry.overrides, entry.start)
    return getattr(transformers, name)(config)


def _probed(specimen: Specimen) -> Specimen:
    """The specimen, if its stock model runs: on text alone, or else with an image."""
    entry = specimen.entry
    tries = [entry] if entry.always else [entry, replace(entry, always=True)]
    problem = None
    for each in tries:
        candidate = replace(specimen, entry=each)
        images = int(each.always and each.image is not None)
        try:
            inputs = candidate.prompt((30,), images=images, video=each.always and not images)
            with torch.no_grad():
                candidate.model.generate(**inputs, max_new_tokens=2)
            return candidate
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise NotBuilt(f"its stock generate does not run: {_line(problem)}") from problem


def _accept_old_types(config_class: type) -> None:
    """Has fields checked as older releases of huggingface_hub do, where that is needed.

    Older releases of transformers write int where they mean bool, which newer hubs refuse even in
    the defaults. It stays so, as generating checks the fields again.
    """
    try:
        config_class()
    except Exception:
        dataclasses._validate_simple_type = _integer_or_bool


def _integer_or_bool(name: str, value: Any, expected: type) -> None:
    """Checks a field; a bool is an int."""
    if not isinstance(value, expected):
        raise TypeError(f"Field '{name}' expected {expected.__name__}, got {value!r}")


@contextmanager
def _stand_in(tower: Callable[[Any], Any] | None) -> Iterator[None]:
    """While this runs, ``tower`` is built where the configuration asks for one of timm's."""
    if tower is None:
        yield
        return
    usual = transformers.AutoModel.from_config

    def chosen(config: Any, **settings: Any) -> Any:
        # gemma3n_vision is a timm configuration too, of a type of its own.
        timm = hasattr(config, "architecture") and hasattr(config, "do_pooling")
        return tower(config) if timm else usual(config, **settings)

    with mock.patch.object(transformers.AutoModel, "from_config", chosen):
        yield


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _settled(model: Any) -> Any:
    """The model ready for greedy decoding that nothing ends early."""
    settings = model.generation_config
    settings.do_sample = False
    settings.eos_token_id = None
    settings.pad_token_id = PAD
    model.requires_grad_(requires_grad=False)
    return model.eval()
