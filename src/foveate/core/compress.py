"""The verb: a policy applied to tensors, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from foveate.core.layer import Layer
from foveate.core.pipeline import Kept, bytes_of_a_token, everything
from foveate.core.policy import Policy
from foveate.core.reading import PromptReading
from foveate.core.tensors import QKV, layers_of


def compress_tensors(
    policy: Policy,
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"] | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Kept]:
    """What a policy keeps of a prompt, from its tensors alone.

    Args:
        policy: what to keep.
        layers: per layer (q, k, v) of shapes [b, hq, n, d], [b, h, n, d], [b, h, n, e], post-RoPE.
        vision: True at visual tokens.
        attention_mask: 1 (or True) at tokens, 0 at padding, which must stand on the left.
        scale: of the attention logits; 1/sqrt(d) by default.

    Raises:
        InvalidInput: shapes that do not fit together, or padding that is not on the left.
        InvalidBudget: a budget below what is protected.
        MissingModality: the policy needs ``vision``.
    """
    return compress_layers(policy, layers_of(layers, vision, attention_mask, scale))


def compress_layers(policy: Policy, layers: Sequence[Layer]) -> list[Kept]:
    """Scores, budgets, selects and merges, layer by layer or over all, as the scope says."""
    pair_bytes = sum(bytes_of_a_token(layer) for layer in layers)
    reading = PromptReading(policy, len(layers), pair_bytes=pair_bytes)
    found: dict[int, Kept] = {}
    for layer in layers:
        found |= reading.completed(layer)
    return [found.get(place, everything(layer)) for place, layer in enumerate(layers)]
