"""Work of a policy's stages on one layer, without the model's attention.

The layer is random, and so are the by-products of the attention that a score uses (column sums,
sums over a long window). Only the policy's own work remains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foveate.cache.layer import Layer, WindowSums
from foveate.cache.pairs import Pairs
from foveate.cache.slots import Slots
from foveate.compression.reading import PromptReading
from foveate.hf.attention.dispatch import WORTH
from foveate.policies.policy import Policy


@dataclass(frozen=True)
class Heads:
    """Heads of one attention layer: ``heads`` for queries and ``kv_heads`` for pairs."""

    heads: int
    kv_heads: int
    size: int


def drawn(
    policy: Policy,
    tokens: int,
    heads: Heads,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    queries: int = 1,
) -> Layer:
    """Draw a layer of one row with ``tokens`` tokens, the middle half of them one image.

    It has normal deviates, at least ``queries`` queries and otherwise no more than the policy's
    score reads, and the by-products that the policy needs.
    """
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    slots = _slots(policy, tokens, heads, device, queries)
    h, d = heads.kv_heads, heads.size
    layer = Layer(
        q=normal(1, heads.heads, slots.q_pos.shape[1], d),
        k=normal(1, h, tokens, d),
        v=normal(1, h, tokens, d),
        slots=slots,
        scale=d**-0.5,
    )
    if policy.reads_column_sums:
        sums = torch.rand(
            (1, heads.heads, tokens), generator=generator, dtype=torch.float32, device=device
        )
        layer = replace(layer, column_sums=sums)
    if policy.reads_output_weight:
        layer = replace(layer, output_weight=normal(heads.heads, d, heads.heads * d))
    if policy.reads_residual_norm:
        layer = replace(layer, residual_norm=normal(1, layer.q.shape[2]).abs())
    return _with_window_sums(policy, layer)


def _slots(policy: Policy, tokens: int, heads: Heads, device: torch.device, queries: int) -> Slots:
    pos = torch.arange(tokens, device=device)
    inside = (pos >= tokens // 4) & (pos < 3 * tokens // 4)
    image = torch.where(inside, 0, -1)
    pair_bytes = 2 * 4 * heads.kv_heads * heads.size
    budget = policy.tokens(pos.new_tensor([tokens]), pair_bytes)
    m = max(queries, min(tokens, policy.score.queries(int(budget))))
    shape = (1, heads.kv_heads, tokens)
    return Slots(
        pos=pos.expand(shape),
        q_pos=pos[None, -m:],
        image=image.expand(shape),
        spot=torch.where(inside, pos - tokens // 4, -1).expand(shape),
        q_image=image[None, -m:],
        tokens=budget,
    )


def _with_window_sums(policy: Policy, layer: Layer) -> Layer:
    """Add random sums of a long window, with the weights that the score declares for its slots."""
    window = policy.reads_window_sums
    if policy.reads_column_sums or window is None or layer.q.shape[2] < WORTH:
        return layer
    weights = window.window_weights(layer.slots, layer.groups)
    b, h, n = layer.k.shape[:3]
    sums = torch.rand(
        (b, h, weights.counts.shape[1], n), dtype=torch.float32, device=layer.k.device
    )
    return replace(layer, window_sums=WindowSums(weights, sums))


def anew(policy: Policy, layer: Layer) -> Layer:
    """Return the layer with fresh slots, from which nothing has been derived yet."""
    return _with_window_sums(policy, replace(layer, slots=replace(layer.slots)))


def work(policy: Policy, layer: Layer) -> Pairs:
    """Do everything that a policy does with a layer at the end of a prompt.

    Score, budget, selection, merge, and storage of what is kept.
    """
    kept = PromptReading(policy, 1).completed(layer)[0]
    pairs, by_modality = kept.store(layer.slots.pos, layer.k.shape[2]), policy.stores_by_modality
    if by_modality is None:
        return policy.store(pairs)
    return by_modality.of_modality(pairs, layer.slots.known_image[:, 0] >= 0)
