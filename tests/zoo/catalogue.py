"""The families by name, and their models."""

from __future__ import annotations

from functools import cache

import torch
from transformers import PreTrainedModel

from . import seed_models, special_models, text_models, vision_models
from .family import PAD, Family
from .weights import randomise

_VLM = (
    *vision_models.VISION,
    *seed_models.SEEDS,
    *special_models.MROPE,
    *special_models.CROSS,
)
_ALL = {entry.name: entry for entry in (*_VLM, *text_models.TEXT, *text_models.REFUSED)}

VLM_FAMILIES: tuple[str, ...] = tuple(entry.name for entry in _VLM)
"""Names of the vision-language families."""

TEXT_FAMILIES: tuple[str, ...] = tuple(entry.name for entry in text_models.TEXT)
"""Names of the text families."""

FAMILIES: tuple[str, ...] = VLM_FAMILIES + TEXT_FAMILIES
"""Names of all families that must work."""

REFUSED_FAMILIES: tuple[str, ...] = tuple(entry.name for entry in text_models.REFUSED)
"""Names of families that `build` knows too, but that must be refused."""


def family(name: str) -> Family:
    """The entry of a family.

    Raises:
        KeyError: If there is none of that name.
    """
    return _ALL[name]


def fresh(name: str) -> PreTrainedModel:
    """Builds a family's model anew, for tests that change it; equal to what `build` returns."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = family(name).make()
    randomise(model, name)
    settings = model.generation_config
    settings.do_sample = False
    settings.eos_token_id = None
    settings.pad_token_id = PAD
    model.requires_grad_(requires_grad=False)
    model.eval()
    return model


@cache
def build(name: str) -> PreTrainedModel:
    """The tiny model of a family: random reproducible weights, float32, in evaluation mode.

    All callers share one instance; who changes it uses `fresh`.
    """
    return fresh(name)
