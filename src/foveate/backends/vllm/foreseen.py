"""What a model's configuration tells of its layers, before any of them is made.

Workers look at the layers themselves (``support.check_layers``, ``check_attention``), and refuse
what is not foreseen here; but by then an engine has been started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.backends.vllm.settings import check_profiles
from foveate.backends.vllm.support import HYBRID
from foveate.backends.vllm.tiers import shaping
from foveate.core.policy import Policy
from foveate.errors import UnsupportedEngine

ALIBI = ("bloom",)
SINKS = ("gpt_oss",)
"""Types of models whose every configuration has it."""
PARTIAL = {"sliding_attention", "chunked_attention", "linear_attention", "mamba", "conv"}
"""Kinds of layers that do not hold every token of a prompt."""


def check_foreseen(config: Any, policies: Sequence[Policy]) -> None:
    """Refuses models by their configuration. ``config`` is a ``VllmConfig``.

    Raises:
        UnsupportedEngine: names what the model's configuration says.
        ProfileMismatch: a policy's profile is another model's.
    """
    model = config.model_config
    for what, value in _refused(model.hf_text_config).items():
        if value:
            raise UnsupportedEngine(
                f"{model.model} has {what}, which the scores and pages of Foveate's worker do not "
                "model. This model cannot be compressed."
            )
    if shaping(policies) is not None and config.scheduler_config.disable_hybrid_kv_cache_manager:
        raise UnsupportedEngine(HYBRID)
    for policy in policies:
        check_profiles(policy, model.model)


def _refused(text: Any) -> dict[str, Any]:
    """What of a text model's configuration is refused, and whether it is there."""
    kind = getattr(text, "model_type", "")
    attention = getattr(text, "attn_config", None)  # of MPT
    slopes = getattr(text, "alibi", False) or getattr(attention, "alibi", False)
    layers = getattr(text, "layer_types", None) or ()
    sharing = getattr(text, "num_kv_shared_layers", 0)
    return {
        "a bias that grows with distance (ALiBi)": kind in ALIBI or slopes,
        "a soft cap of its attention's logits": getattr(text, "attn_logit_softcapping", None),
        "attention sinks": kind in SINKS,
        f"{sharing} layers that read the cache of an earlier one": sharing,
        "no layer that holds every token of a prompt": layers and PARTIAL.issuperset(layers),
    }
