"""A policy adapted to one model: with the profile that is installed for it, its budget divided for
a prompt, and a warning if it concerns images and the model has none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from foveate.cache.pairs import Form
from foveate.compression.budget_division import bytes_of, divided
from foveate.compression.composition import policy as policy_of
from foveate.compression.tensors import compress_tensors
from foveate.errors import FoveateError, MissingModality, ProfileMismatch, UnsupportedModel
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import compressible_layers, model_name, text_config
from foveate.hf.model.layer_settings import layer_settings
from foveate.hf.model.modality import visual_token_ids
from foveate.hf.model.weights import weights_digest
from foveate.policies.amount import Amount
from foveate.policies.method import METHODS
from foveate.policies.policy import Policy
from foveate.policies.registry import OWN
from foveate.profiles import installed

_TOKENS = 96  # of the trial prompt of _needs_vision


def with_installed(policy: Policy, model: PreTrainedModel) -> Policy:
    """Return the policy with the profile that is installed for the model, if it is of one method
    whose profile is optional and not set. The logger "foveate" reports it, and warns if profiles
    are installed only for other weights of the model.
    """
    origin = policy.origin
    if origin is None or origin.overrides or len(origin.build.names) != 1:
        return policy
    parameter = origin.build.parameters.get("profile")
    if parameter is None or parameter.default is not None or origin.arguments.get("profile"):
        return policy
    (name,) = origin.build.names
    try:
        path = installed.find(name, model_name(model), partial(weights_digest, model))
    except ProfileMismatch as error:
        _log_once(f"{name} does not use the installed profile: {error}", logging.WARNING)
        return policy
    if path is None:
        return policy
    _log_once(f"{name} uses the profile installed for this model: {path}", logging.INFO)
    with_profile: Policy = origin.build(**{**origin.arguments, "profile": str(path)})
    return with_profile


def say_without_images(model: PreTrainedModel, policy: Policy, vision: Tensor | None) -> None:
    """Warn, once per policy, if the policy treats visual tokens differently and the model has none.
    The logger is "foveate".
    """
    if vision is None and not visual_token_ids(model.config) and _is_about_images(policy):
        _log_once(
            f"{policy.name} treats visual tokens and text differently, and {type(model).__name__} "
            "reads text only: all of its tokens count as text. 'foveate methods' lists methods for "
            "any tokens.",
            logging.WARNING,
        )


def _is_about_images(policy: Policy) -> bool:
    """Return True if a policy needs to know the visual tokens. False for third-party methods, whose
    stages might not support the trial.
    """
    origin = policy.origin
    if origin is None or origin.overrides:
        return False
    modules = [METHODS[name].function.__module__ for name in origin.build.names]
    return all(module.startswith(f"{OWN}.") for module in modules) and _needs_vision(policy.spec)


@lru_cache(maxsize=128)
def _needs_vision(spec: str) -> bool:
    """Return True if the policy raises MissingModality on a prompt whose visual tokens are
    unknown.
    """
    k = torch.ones(1, 1, _TOKENS, 8, device="cpu", dtype=torch.float32)
    try:
        compress_tensors(policy_of(spec).but(budget="90%"), [(k, k, k)])
    except MissingModality:
        return True
    except FoveateError:  # it needs a model, or one of its profile's size
        return False
    return False


@cache  # each message once
def _log_once(message: str, level: int) -> None:
    logging.getLogger("foveate").log(level, message)


# One budget, divided for the prompt that the model will read


def divided_for(
    model: PreTrainedModel, policy: Policy, lengths: Sequence[int], columns: int | None = None
) -> Policy:
    """Return the policy with its shares written out, for a prompt of ``lengths`` tokens by row in a
    batch of ``columns`` columns; unchanged if it leaves none open.

    Raises:
        UnsupportedModel: the size of a pair is unknown before the model reads.
    """
    if not policy.left_open:
        return policy
    return divided(policy, forms_of(model), lengths, columns or max(lengths))


_LATENT_SIZES = (
    "num_attention_heads",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
)
_SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")


def forms_of(model: PreTrainedModel) -> tuple[Form, ...]:
    """Return the form of each compressed layer's pairs from the model's configuration. The actual
    pairs are checked against it later.

    Raises:
        UnsupportedModel: the configuration does not have the sizes.
    """
    config = text_config(model)
    if any(layer_settings(config, "kv_lora_rank")):
        return _latent_forms(model, config)
    sizes = list(zip(*(layer_settings(config, name) for name in _SIZES), strict=True))
    return tuple(_form(model, *sizes[index]) for index in compressible_layers(config))


def _form(
    model: PreTrainedModel, queries: Any, heads: Any, head_size: Any, hidden_size: Any
) -> Form:
    heads = heads or queries
    if not head_size and isinstance(queries, int):
        head_size = (hidden_size or 0) // queries
    if not all(isinstance(number, int) and number > 0 for number in (queries, heads, head_size)):
        raise UnsupportedModel(
            f"the configuration of {type(model).__name__} has no number and size of heads, so the "
            "bytes of a pair are unknown and the budget cannot be divided before the prompt is "
            "read. Write the shares out instead of auto, such as keep=50% and bits=4."
        )
    return Form(heads, queries, head_size, head_size, model.dtype)


def _latent_forms(model: PreTrainedModel, config: PreTrainedConfig) -> tuple[Form, ...]:
    """Return the forms under multi-head latent attention, with latents or expanded keys stored."""
    expanding, forms = with_latents(model), []
    settings = list(zip(*(layer_settings(config, name) for name in _LATENT_SIZES), strict=True))
    for index in compressible_layers(config):
        queries, rank, rotary, rest, value = settings[index]
        form = Form(queries, queries, rest + rotary, value, model.dtype)
        if index in expanding:
            module: Any = expanding[index]
            indexer = getattr(module, "indexer", None)
            rotary = module.qk_rope_head_dim + (0 if indexer is None else indexer.head_dim)
            form = form._replace(heads=1, key=rank, value=rotary)
        forms.append(form)
    return tuple(forms)


def divide_for_prompt(
    model: PreTrainedModel, state: CacheState, lengths: Sequence[int], columns: int
) -> None:
    """Divide the budget of a cache whose prompt begins, and will have these lengths. In later turns
    only the bytes are updated: stored pairs keep their bits.
    """
    forms = forms_of(model)
    if state.policy.left_open:
        state.divide(divided(state.undivided, forms, lengths, columns), forms)
        return
    allowed = Amount.of(f"{bytes_of(state.undivided.amount, forms, lengths)}B")
    state.divide(state.policy.but(budget=allowed), forms)
