"""Attention over latents equals attention over the keys and values that they expand to."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.latent_attention import Projections, latent_attention
from tests.pairs import by_turns

B, HQ, N, S, E, R, P, WINDOW = 2, 4, 40, 12, 10, 16, 8, 9


def masks(m):
    """Masks [b, m, n] of a pass at the end, by name."""
    rows, columns = torch.arange(N - m, N)[:, None], torch.arange(N)
    causal = (columns <= rows).expand(B, m, N)
    padding = torch.tensor([0, 17])[:, None, None] <= columns
    return {
        "none": None,
        "padded": causal & padding,
        "chunk": causal,
        "sliding": causal & (columns > rows - WINDOW),
    }


def expanded(q, latents, rotary, projections, scale, visible, sinks):
    """The definition: softmax(q [W_UK c, k_rope] * scale) W_UV c, head by head, in float64."""
    heads = []
    for h, (up_k, up_v) in enumerate(zip(*projections, strict=True)):
        keys = torch.cat([latents.double() @ up_k.double().T, rotary.double()], -1)
        logits = q[:, h].double() @ keys.mT * scale
        if visible is not None:
            logits = logits.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            logits = torch.cat([logits, sinks[h].double().expand(B, q.shape[2], 1)], -1)
        heads.append(logits.softmax(-1)[..., :N] @ (latents.double() @ up_v.double().T))
    return torch.stack(heads, 1)


@by_turns(
    rounds=3,
    mask=["none", "padded", "chunk", "sliding"],
    queries=[1, 5],
    positions=["rotary", "without"],
    scaled=["one scale", "by position"],  # as Mistral 4 scales its queries
    sinks=[None, "sinks"],
    dtype=[torch.float32, torch.bfloat16],
)
def test_it_equals_the_expansion(mask, queries, positions, scaled, sinks, dtype):
    torch.manual_seed(0)
    p = P if positions == "rotary" else 0
    q = torch.randn(B, HQ, queries, S + p)
    if scaled == "by position":
        q *= 1 + 0.1 * torch.arange(N - queries, N).log()[:, None]
    parts = [torch.randn(B, N, R), torch.randn(B, N, p), torch.randn(HQ, S, R) / 4]
    q, latents, rotary, up_k, up_v = (t.to(dtype) for t in (q, *parts, torch.randn(HQ, E, R) / 4))
    extra = None if sinks is None else torch.randn(HQ)
    given = (q, latents, rotary, Projections(up_k, up_v), 0.2, masks(queries)[mask], extra)
    found = latent_attention(*given)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), expanded(*given), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_sees_nothing_gets_zeros(dtype):
    visible = torch.ones(B, 2, N, dtype=torch.bool)
    visible[1, 0] = False
    q, up = torch.randn(B, HQ, 2, S + P, dtype=dtype), torch.randn(2, HQ, S, R, dtype=dtype)
    latents, rotary = torch.randn(B, N, R, dtype=dtype), torch.randn(B, N, P, dtype=dtype)
    found = latent_attention(q, latents, rotary, Projections(*up), 0.2, visible)
    assert not found[1, :, 0].any()
    assert found[0].any(-1).all()
    assert found[1, :, 1].any(-1).all()


def test_absorbing_is_faster_for_few_queries_only():
    deepseek_v3 = Projections(torch.empty(128, 128, 512), torch.empty(128, 128, 512))
    assert deepseek_v3.is_absorbed_faster(queries=1, rotary=64)
    assert deepseek_v3.is_absorbed_faster(queries=170, rotary=64)
    assert not deepseek_v3.is_absorbed_faster(queries=171, rotary=64)
