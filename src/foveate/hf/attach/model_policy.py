"""A policy as one model takes it: with the profile that is installed for the model, its one budget
divided for a prompt, and a warning where it is about images and the model has none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, lru_cache, partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foveate.cache.pairs import Form
from foveate.compression.composition import policy as policy_of
from foveate.compression.dividing import bytes_of, divided
from foveate.compression.tensors import compress_tensors
from foveate.errors import FoveateError, MissingModality, ProfileMismatch, UnsupportedModel
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import compressible_layers, model_name, text_config
from foveate.hf.model.modality import visual_token_ids
from foveate.hf.model.weights import weights_digest
from foveate.policies.amount import Amount
from foveate.policies.method import METHODS
from foveate.policies.policy import Policy
from foveate.policies.registry import OWN
from foveate.profiles import installed

_TOKENS = 96


def with_installed(policy: Policy, model: PreTrainedModel) -> Policy:
    """The policy with the profile that is installed for the model, where it came from one method
    that can do without a profile and was given none. The log, "foveate", says so, and says where
    profiles are installed for other weights of the model alone.
    """
    origin = policy.origin
    if origin is None or origin.overrides or len(origin.build.names) != 1:
        return policy
    taken = origin.build.parameters.get("profile")
    if taken is None or taken.default is not None or origin.arguments.get("profile"):
        return policy
    (name,) = origin.build.names
    try:
        path = installed.find(name, model_name(model), partial(weights_digest, model))
    except ProfileMismatch as error:
        _say(f"{name} goes without the profile that is installed: {error}", logging.WARNING)
        return policy
    if path is None:
        return policy
    _say(f"{name} takes the profile that is installed for this model: {path}", logging.INFO)
    made: Policy = origin.build(**{**origin.arguments, "profile": str(path)})
    return made


def say_without_images(model: PreTrainedModel, policy: Policy, vision: Tensor | None) -> None:
    """The log says once of each policy, at WARNING, that it treats visual tokens differently and
    that the model has none.
    """
    if vision is None and not visual_token_ids(model.config) and _is_about_images(policy):
        _say(
            f"{policy.name} treats visual tokens and text differently, and {type(model).__name__} "
            "reads text alone: all of its tokens count as text. 'foveate methods' lists those for "
            "any tokens.",
            logging.WARNING,
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


@cache  # once
def _say(what: str, level: int) -> None:
    logging.getLogger("foveate").log(level, what)


# One budget, divided for the prompt that the model is about to read


def divided_for(
    model: PreTrainedModel, policy: Policy, lengths: Sequence[int], columns: int | None = None
) -> Policy:
    """The policy with its shares written out for a prompt of so many tokens in each row, in a batch
    of so many columns; itself where it leaves none open.

    Raises:
        UnsupportedModel: what a pair takes is not known before it is there.
    """
    if not policy.left_open:
        return policy
    return divided(policy, forms_of(model), lengths, columns or max(lengths))


def forms_of(model: PreTrainedModel) -> tuple[Form, ...]:
    """Of the pairs of each layer that is compressed, as the model's configuration says; they are
    held against those that come.

    Raises:
        UnsupportedModel: it does not say.
    """
    config = text_config(model)
    queries = getattr(config, "num_attention_heads", None)
    heads = getattr(config, "num_key_value_heads", None) or queries
    size = getattr(config, "head_dim", None)
    if not size and isinstance(queries, int):
        size = getattr(config, "hidden_size", 0) // queries
    if not all(isinstance(number, int) and number > 0 for number in (queries, heads, size)):
        raise UnsupportedModel(
            f"the configuration of {type(model).__name__} does not say how many bytes a pair takes "
            "(heads, and their size), so no budget can be divided before it reads. Write the "
            "shares out instead of auto, such as keep=50% and bits=4."
        )
    form = Form(heads, queries, size, size, model.dtype)  # type: ignore[arg-type]
    return (form,) * len(compressible_layers(config))


def divide_for_prompt(
    model: PreTrainedModel, state: CacheState, lengths: Sequence[int], columns: int
) -> None:
    """Divides the budget of a cache whose prompt begins, and will have these lengths. What is held
    of earlier turns is in so many bits already, so that of later ones the bytes alone are new.
    """
    forms = forms_of(model)
    if state.policy.left_open:
        state.divide(divided(state.given, forms, lengths, columns), forms)
        return
    allowed = Amount.of(f"{bytes_of(state.given.amount, forms, lengths)}B")
    state.divide(state.policy.but(budget=allowed), forms)
