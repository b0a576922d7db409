"""Compactor's two scores and their blend against slow transcriptions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidParameter
from foveate.methods.compactor import LeverageAndAttention
from foveate.stages.score import Leverage, NonCausalAttention
from tests.literal.attention import top
from tests.methods.test_literal import BUDGET, PROMPTS, assert_kept
from tests.methods.visual import visual
from tests.stages.layers import changed, random_layer

every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)


def z_scores(scores, by_head=False):
    """Of a row's heads together, or of each."""
    if by_head:
        return torch.stack([z_scores(head[None])[0] for head in scores])
    return (scores - scores.mean()) / scores.std()


def drawn(d, columns, seed=0, layer=0):
    generator = torch.Generator().manual_seed(seed * 100_003 + layer)
    return torch.randn(d, columns, generator=generator).double() / math.sqrt(columns)


def literal_leverage(k, sketch):
    """[h, t] by inverting, in double precision."""
    found = []
    for keys in k.double():
        x = keys - keys.mean(0)
        x = x if sketch is None else x @ drawn(x.shape[1], sketch)
        inverse = torch.linalg.inv(x.T @ x + 0.01 * torch.eye(x.shape[1]).double())
        found.append(torch.stack([row @ inverse @ row for row in x]))
    return torch.stack(found)


def literal_attention(q, k, v, chunk, kernel, value_norm, scale=1.0, filled=False):
    """[h, t]; ``filled``: zeros fill up the last part; they attend and are attended to."""
    heads, t, _ = k.shape
    group = q.shape[0] // heads
    found = torch.zeros(heads, t, dtype=torch.float64)
    for head in range(heads):
        for member in range(group):
            queries = q[head * group + member].double()
            for first in range(0, t, chunk):
                last = min(t, first + chunk)
                missing = first + chunk - last if filled else 0
                for i in range(first, last):
                    logits = [
                        float(queries[i] @ k[head, j].double()) * scale for j in range(first, last)
                    ]
                    paid = torch.tensor(logits + [0.0] * missing).double().softmax(0)
                    found[head, first:last] += paid[: last - first] / group
                found[head, first:last] += missing / chunk / group
        if value_norm:
            found[head] *= v[head].double().norm(dim=-1)
        half = kernel // 2
        near = [
            [float(found[head, j]) for j in range(i - half, i + half + 1) if 0 <= j < t]
            for i in range(t)
        ]
        found[head] = torch.tensor([sum(x) / kernel for x in near])
    return found


def alone(layer, row):
    pad = int((layer.pos[row, 0] < 0).sum())
    return tuple(x[row, :, pad:] for x in (layer.q, layer.k, layer.v))


ROWS = random_layer((29, 40, 18), h=2, g=2, d=6)


@pytest.mark.parametrize("sketch", [3, 48, None])
@pytest.mark.parametrize("over", ["layer", "head"])
@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (4, 3)])
def test_leverage_is_that_of_inverting_the_gram_matrix(sketch, over, sinks, recent):
    score = Leverage(sketch=sketch, over=over, sinks=sinks, recent=recent)
    found = score(ROWS).values
    for row in range(3):
        _, k, _ = alone(ROWS, row)
        inner = slice(sinks, k.shape[1] - recent)
        expected = z_scores(literal_leverage(k[:, inner], sketch), over == "head")
        ours = found[row, :, -k.shape[1] :]
        assert_close(ours[:, inner].double(), expected, rtol=1e-3, atol=1e-4)
        kept_anyway = torch.cat([ours[:, :sinks], ours[:, k.shape[1] - recent :]], 1)
        assert bool((kept_anyway >= ours.max()).all())


@pytest.mark.parametrize("chunk", [7, 20, 64])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize(
    ("kernel", "value_norm", "scaled", "ends"),
    [(3, True, False, (0, 0)), (5, True, False, (4, 3)), (1, False, True, (0, 2))],
)
def test_non_causal_attention_is_what_each_part_pays_to_its_tokens(
    chunk, filled, kernel, value_norm, scaled, ends
):
    sinks, recent = ends
    score = NonCausalAttention(
        chunk=chunk,
        kernel=kernel,
        value_norm=value_norm,
        scaled=scaled,
        sinks=sinks,
        recent=recent,
        as_released=filled,
    )
    found = score(ROWS).values
    for row in range(3):
        q, k, v = alone(ROWS, row)
        inner = slice(sinks, k.shape[1] - recent)
        scale = ROWS.scale if scaled else 1.0
        expected = literal_attention(
            q[:, inner], k[:, inner], v[:, inner], chunk, kernel, value_norm, scale, filled
        )
        ours = found[row, :, -k.shape[1] :][:, inner].double()
        assert_close(ours, z_scores(expected), rtol=1e-3, atol=1e-4)


@every_prompt
@pytest.mark.parametrize("blending", [None, 0.5])
@pytest.mark.parametrize("sketch", [5, None])
def test_compactor(prompt, blending, sketch):
    def literal(q, k, v, is_image):
        t = k.shape[1]
        inner = slice(3, t - 2)
        far = z_scores(literal_leverage(k[:, inner], sketch))
        paid = z_scores(literal_attention(q[:, inner], k[:, inner], v[:, inner], 16, 3, True))
        weight = 1 - BUDGET / t if blending is None else blending
        ends = [0, 1, 2, t - 2, t - 1]
        return [[*ends, *(3 + i for i in top(x.tolist(), BUDGET - 5))] for x in weight * far + paid]

    policy = foveate.compactor(
        budget=BUDGET, blending=blending, sketch=sketch, chunk=16, sinks=3, recent=2
    )
    assert_kept(visual(**prompt), policy, literal)


@pytest.mark.parametrize("lengths", [(3, 12), (12, 13), (1, 40)])
def test_rows_that_are_shorter_than_what_is_always_kept(lengths):
    layer = changed(random_layer(lengths), tokens=torch.tensor([2, 2]))
    for score in (Leverage(sinks=8, recent=4), NonCausalAttention(sinks=8, recent=4)):
        assert bool(score(layer).values.isfinite().all())
    assert bool(LeverageAndAttention()(layer).values.isfinite().all())


def test_large_and_equal_keys_have_a_leverage():
    layer = random_layer((60,), d=32)
    same = layer.k[:, :, :1].expand_as(layer.k)
    for k in (layer.k * 1e6, layer.k * 0, same * 1e4):
        for sketch in (48, None):
            assert bool(Leverage(sketch=sketch)(changed(layer, k=k)).values.isfinite().all())


def test_slots_whose_queries_are_gone_are_refused():
    layer = random_layer((20,))
    few = changed(layer, q=layer.q[:, :, -5:], q_pos=layer.q_pos[:, -5:])
    with pytest.raises(InvalidParameter, match="has 5 queries for 20 slots: compress once"):
        NonCausalAttention()(few)


def test_of_slots_that_are_left_each_head_takes_their_own_queries():
    whole = random_layer((20,), h=2, g=2)
    left = torch.stack([torch.arange(0, 20, 2), torch.arange(1, 20, 2)])
    k, v = (torch.stack([x[0, h, left[h]] for h in (0, 1)])[None] for x in (whole.k, whole.v))
    found = NonCausalAttention(chunk=6, over="head")(
        changed(whole, k=k, v=v, pos=left[None].contiguous())
    ).values
    for head in (0, 1):
        q = whole.q[0, 2 * head : 2 * head + 2, left[head]]
        expected = literal_attention(q, k[0, head : head + 1], v[0, head : head + 1], 6, 3, True)
        assert_close(found[0, head].double(), z_scores(expected)[0], rtol=1e-3, atol=1e-4)


def test_a_blend_by_the_evicted_share_needs_a_budget():
    with pytest.raises(InvalidParameter, match=r"Slots\(tokens=...\), or blending as a number"):
        LeverageAndAttention()(random_layer((20,)))


def test_only_scores_by_head_can_be_shared_out_among_workers():
    for stage in (Leverage, NonCausalAttention, LeverageAndAttention):
        assert stage(over="head").head_by_head
        assert not stage().head_by_head
