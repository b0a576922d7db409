"""Attention over the latents of multi-head latent attention (MLA), which expands none of them.

A head's key is ``[W_UK latent, rotary key]`` and its value ``W_UV latent``, so the query may take
``W_UK`` and the output ``W_UV`` instead: the projections are absorbed (DeepSeek-V2,
arXiv:2405.04434, section 2.1.2). All heads then attend to the same latents.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Projections(NamedTuple):
    """Projections from a latent to the keys (W_UK) and values (W_UV) of every head."""

    keys: Float[Tensor, "hq s r"]
    values: Float[Tensor, "hq e r"]

    def is_absorbed_faster(self, queries: int, rotary: int) -> bool:
        """Return True if absorbed projections need fewer products per latent than its expansion,
        for so many queries and rotary elements. With 512 latent and 128 head elements that is up to
        170 queries; measured on a CPU in float32, 64 took 0.35 of the time and 256 all of it.
        """
        _, s, r = self.keys.shape
        e = self.values.shape[1]
        return queries * (2 * r + rotary) <= r * (s + e) + queries * (s + rotary + e)


def latent_attention(
    q: Float[Tensor, "b hq m d"],
    latents: Float[Tensor, "b n r"],
    rotary: Float[Tensor, "b n p"],
    projections: Projections,
    scale: float,
    visible: Bool[Tensor, "b m n"] | None = None,
    sinks: Float[Tensor, "hq"] | None = None,
) -> Float[Tensor, "b hq m e"]:
    """Compute the attention of all heads to latents. A query that sees nothing gets zeros.

    Softmax in float32; the products in the inputs' dtype.

    Args:
        q: queries: ``s`` elements for the latents, then ``p`` for the rotary keys.
        latents: the latents that keys and values are expanded from.
        rotary: keys with positions, shared by the heads; ``p`` may be 0.
        projections: from latents to keys and values.
        scale: of the logits.
        visible: the latents that each query sees; None: all.
        sinks: one more logit of each head, without a value.
    """
    b, hq, m, _ = q.shape
    s = projections.keys.shape[1]
    absorbed = torch.einsum("bhms,hsr->bhmr", q[..., :s], projections.keys)
    queries = torch.cat([absorbed, q[..., s:]], -1).flatten(1, 2)  # of one head
    seen = None if visible is None else visible.repeat(1, hq, 1)
    if sinks is None and q.device.type == "cpu" and q.dtype != torch.float32:
        attended = _in_one_call(queries, latents, rotary, scale, seen)
    else:
        each = None if sinks is None else sinks.repeat_interleave(m)
        attended = _by_products(queries, latents, rotary, scale, seen, each)
    if seen is not None:  # a softmax over nothing is NaN
        attended = attended.masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return torch.einsum("bhmr,her->bhme", attended.view(b, hq, m, -1), projections.values)


def _in_one_call(
    queries: Float[Tensor, "b x c"],
    latents: Float[Tensor, "b n r"],
    rotary: Float[Tensor, "b n p"],
    scale: float,
    seen: Bool[Tensor, "b x n"] | None,
) -> Float[Tensor, "b x r"]:
    """Compute the attention by PyTorch's, whose fast path on CPUs takes keys and values of one
    size only. In 16 bits it takes a tenth of the time of products.
    """
    keys = torch.cat([latents, rotary], -1)[:, None]
    mask = None if seen is None else seen[:, None]
    out = scaled_dot_product_attention(queries[:, None], keys, keys, attn_mask=mask, scale=scale)
    return out[:, 0, :, : latents.shape[2]]


def _by_products(
    queries: Float[Tensor, "b x c"],
    latents: Float[Tensor, "b n r"],
    rotary: Float[Tensor, "b n p"],
    scale: float,
    seen: Bool[Tensor, "b x n"] | None,
    sinks: Float[Tensor, "x"] | None,
) -> Float[Tensor, "b x r"]:
    """Compute the attention by matrix products, without a copy of the latents."""
    r = latents.shape[2]
    queries = queries * scale
    logits = torch.baddbmm(queries[..., r:] @ rotary.mT, queries[..., :r], latents.mT).float()
    if seen is not None:
        logits = logits.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.float().view(1, -1, 1).expand(len(logits), -1, 1)
        logits = torch.cat([logits, column], -1)
    weights = logits.softmax(-1)[..., : latents.shape[1]].to(queries.dtype)
    return weights @ latents
