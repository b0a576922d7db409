"""Saying that a policy is about images, and the model has none."""

from __future__ import annotations

import logging
from functools import cache, lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foveate.compression.composition import policy as policy_of
from foveate.compression.tensors import compress_tensors
from foveate.errors import FoveateError, MissingModality
from foveate.hf.model.modality import visual_token_ids
from foveate.policies.method import METHODS
from foveate.policies.policy import Policy
from foveate.policies.registry import OWN

_TOKENS = 96


def say_without_images(model: PreTrainedModel, policy: Policy, vision: Tensor | None) -> None:
    """The log says once of each policy, at WARNING, that it treats visual tokens differently and
    that the model has none.
    """
    if vision is None and not visual_token_ids(model.config) and _is_about_images(policy):
        _say_once(policy.name, type(model).__name__)


@cache
def _say_once(name: str, model: str) -> None:
    logging.getLogger("foveate").warning(
        f"{name} treats visual tokens and text differently, and {model} reads text alone: all of "
        "its tokens count as text. 'foveate methods' lists those for any tokens."
    )


def _is_about_images(policy: Policy) -> bool:
    """Whether it asks which tokens are visual. Only Foveate's own methods are looked at: others'
    stages need not stand the trial.
    """
    origin = policy.origin
    if origin is None or origin.overrides:
        return False
    places = [METHODS[name].function.__module__ for name in origin.build.names]
    return all(place.startswith(f"{OWN}.") for place in places) and _asks(policy.spec)


@lru_cache(maxsize=128)
def _asks(spec: str) -> bool:
    """Whether that policy asks it, tried on a prompt of which it is not known."""
    k = torch.ones(1, 1, _TOKENS, 8, device="cpu", dtype=torch.float32)
    try:
        compress_tensors(policy_of(spec).but(budget="90%"), [(k, k, k)])
    except MissingModality:
        return True
    except FoveateError:  # it needs a model, or one of its profile's size
        return False
    return False
