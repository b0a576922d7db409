"""Attention of answers over kept latents (MLA) with absorbed projections: none is expanded.

transformers expands every stored latent at every step. Kept latents are attended to as they are,
wherever that is faster and the projection's weights can be read. Uncompressed ones never are, so
that results equal the stock cache's bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from foveate.cache.pairs import DensePairs, Pairs, RewrittenPairs
from foveate.hf.attention.by_products import Attended
from foveate.hf.attention.dispatch import Queries
from foveate.hf.attention.masks import over_slots
from foveate.ops.latent_attention import Projections, latent_attention


def attend_absorbed(queries: Queries, stored: Pairs, expansion: Any, n: float) -> Attended | None:
    """Compute the attention over stored latents. None where ``expansion`` has to compute keys and
    values: nothing was evicted, that is faster, weights cannot be read, or the model's attention
    does more than a softmax. ``n`` is the n of softmax-n.
    """
    attention = queries.attention
    if not stored.compressed or queries.computed is not None:
        return None
    if not attention.replaceable or attention.additive:  # eager attention returns its weights
        return None
    projections = readable_projections(expansion, queries.q)
    if projections is None:
        return None
    latents, rotary, visible = _seen(queries, stored)
    rotary = rotary[..., : queries.q.shape[3] - projections.keys.shape[1]]  # without index keys
    if not projections.is_absorbed_faster(queries.q.shape[2], rotary.shape[2]):
        return None
    sinks = queries.q.new_full((queries.q.shape[1],), math.log(n)) if n else None
    out = latent_attention(queries.q, latents, rotary, projections, queries.scale, visible, sinks)
    return Attended(out.transpose(1, 2))


def _seen(queries: Queries, stored: Pairs) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return latents, rotary keys, and the mask over them; None if all queries see all of them."""
    if queries.sees_all and isinstance(stored, RewrittenPairs):
        return stored.k[:, 0], stored.v[:, 0], None
    opened = stored.opened()
    if queries.sees_all and isinstance(opened, DensePairs):
        latents, rotary = opened.both()
        return latents[:, 0], rotary[:, 0], None
    latents, rotary, columns = opened.padded()
    visible = over_slots(queries.view.mask, columns, queries.columns)
    return latents[:, 0], rotary[:, 0], visible[:, 0]


def readable_projections(expansion: Any, q: Tensor) -> Projections | None:
    """Return the weights of an attention module's method that expands latents; None if something
    stands between the weights and their product (quantisation, an adapter, a hook, offloading), or
    if the module is none of transformers'.
    """
    module = getattr(expansion, "__self__", None)
    linear = getattr(module, "kv_b_proj", None)
    if type(linear) is not nn.Linear or not type(module).__module__.startswith("transformers."):
        return None
    weight = linear.weight
    if linear.bias is not None or type(weight) is not nn.Parameter:  # a quantised or sharded tensor
        return None
    if "forward" in vars(linear) or linear._forward_hooks or linear._forward_pre_hooks:
        return None
    if weight.dtype != q.dtype or weight.device != q.device:
        return None
    keys, values = module.qk_nope_head_dim, module.v_head_dim
    by_head = weight.view(-1, keys + values, weight.shape[1])
    return Projections(by_head[:, :keys], by_head[:, keys:])
