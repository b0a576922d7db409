"""Checks of a model's configuration, before any layer is built.

Workers check the layers themselves (``support.check_layers``, ``check_attention``), and refuse
models that pass here wrongly; but by then an engine has been started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.policies.policy import Policy
from foveate.vllm.plans.settings import check_profiles
from foveate.vllm.plans.tiers import shaping
from foveate.vllm.startup.support import UNMODELLED, check_layers, refuse

ALIBI = ("bloom",)
"""Types of models that always have the feature, without a setting for it."""
WINDOW = "sliding_attention"
PARTIAL = {WINDOW, "chunked_attention", "linear_attention", "mamba", "conv"}
"""Kinds of layers whose cache does not hold every token of a prompt."""


def check_foreseen(config: Any, policies: Sequence[Policy]) -> None:
    """Refuse models by their configuration. ``config`` is a ``VllmConfig``.

    Raises:
        UnsupportedEngine: names the unsupported feature.
        ProfileMismatch: a policy's profile belongs to another model.
    """
    model = config.model_config
    refuse(f"{model.model} has ", _refused_features(model.hf_text_config), UNMODELLED)
    kinds = _layers(config)
    check_layers(
        compressed=[kind for kind in kinds if kind not in PARTIAL],
        others=[kind for kind in kinds if kind in PARTIAL],
        sharing=(),
        tiers=shaping(policies) is not None,
        hybrid=not config.scheduler_config.disable_hybrid_kv_cache_manager,
    )
    for policy in policies:
        check_profiles(policy, model.model)


def _layers(config: Any) -> list[str]:
    """Return the kinds of the model's layers from its configuration; one layer of full attention if
    it lists none.
    """
    text = config.model_config.hf_text_config
    if config.cache_config.sliding_window is not None:  # set by vLLM if all layers have a window
        return [WINDOW]
    kinds = list(getattr(text, "layer_types", None) or ("full_attention",))
    if getattr(text, "sliding_window", 0) is None:  # --disable-sliding-window
        return ["full_attention" if kind == WINDOW else kind for kind in kinds]
    return kinds


def _refused_features(text: Any) -> dict[str, Any]:
    """Return the refused features of a text model, and for each a true value if it has it."""
    kind = getattr(text, "model_type", "")
    attention = getattr(text, "attn_config", None)  # MPT's configuration
    slopes = getattr(text, "alibi", False) or getattr(attention, "alibi", False)
    sharing = getattr(text, "num_kv_shared_layers", 0)
    return {
        "a bias that grows with distance (ALiBi)": kind in ALIBI or slopes,
        f"{sharing} layers that read the cache of an earlier one": sharing,
    }
