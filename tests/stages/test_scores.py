"""Every score against code that says the same slowly."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.errors import InvalidParameter
from foveate.stages.score import (
    ColumnSums,
    KeyNorm,
    RandomScore,
    Recency,
    ValueNorm,
    WindowAttention,
)
from foveate.stages.score.token_span import TokenSpan
from tests.core.lean import lean
from tests.core.users import unchecked

from .layers import changed, layer_of, random_layer

MEAN_OR_MAX = {"mean": lambda x: sum(x) / len(x), "max": max}


def softmax_of(layer, row, head, query, seen):
    """{slot: weight} of one query (counted from the end) over the slots ``seen``."""
    key = head // layer.groups
    logits = layer.k[row, key, seen].double() @ layer.q[row, head, query].double() * layer.scale
    return dict(zip(seen, logits.softmax(0).tolist(), strict=True))


# SnapKV's score


def literal_window(layer, window, kernel, pool, group):
    """[b][h][n], from the definition: mean over the window's queries, over the group, pooled."""
    b, h, n = layer.k.shape[:3]
    scores = torch.zeros(b, h, n, dtype=torch.float64)
    end = n - window  # slots before the window; the window itself scores zero
    for row in range(b):
        pad = int((layer.pos[row, 0] < 0).sum())
        queries = [i for i in range(n - window, n) if i >= pad]
        for head in range(h):
            observed = []
            for member in range(layer.groups):
                total = dict.fromkeys(range(n), 0.0)
                for i in queries:
                    seen = list(range(pad, i + 1))
                    for slot, weight in softmax_of(
                        layer, row, head * layer.groups + member, i - n, seen
                    ).items():
                        total[slot] += weight / len(queries)
                observed.append(total)
            reduced = [MEAN_OR_MAX[group]([o[slot] for o in observed]) for slot in range(end)]
            for slot in range(end):
                around = range(slot - kernel // 2, slot + kernel // 2 + 1)
                near = [reduced[i] if 0 <= i < end else 0.0 for i in around]
                pooled = {"avg": sum(near) / kernel, "max": max(near), "none": reduced[slot]}
                scores[row, head, slot] = pooled[pool]
    return scores


@lean
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=2),
    h=st.integers(1, 2),
    g=st.integers(1, 3),
    window=st.integers(1, 5),
    kernel=st.sampled_from([1, 3, 5, 7]),
    pool=st.sampled_from(["avg", "max", "none"]),
    group=st.sampled_from(["mean", "max"]),
    seed=st.integers(0, 9),
)
def test_window_attention_is_what_the_window_pays_reduced_and_pooled(
    lengths, h, g, window, kernel, pool, group, seed
):
    layer = random_layer([*lengths, 12], h=h, g=g, seed=seed)
    score = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    expected = literal_window(layer, window, kernel, pool, group)
    assert_close(score(layer).values.double(), expected, rtol=1e-4, atol=1e-7)


def test_average_pooling_counts_the_zeros_beyond_the_ends():
    pooled = WindowAttention(kernel=3).pooled(torch.tensor([[[3.0, 6.0, 9.0, 0.0, 3.0]]]))
    assert pooled.tolist() == [[[3.0, 6.0, 5.0, 4.0, 1.0]]]


def test_maximum_pooling_takes_the_largest_neighbour():
    pooled = WindowAttention(kernel=3, pool="max").pooled(
        torch.tensor([[[3.0, 1.0, 0.0, 0.0, 2.0]]])
    )
    assert pooled.tolist() == [[[3.0, 3.0, 1.0, 2.0, 2.0]]]


def test_a_window_as_long_as_the_prompt_scores_nothing():
    layer = random_layer([6])
    for window in (6, 7, 100):
        assert WindowAttention(window=window)(layer).values.tolist() == [[[0.0] * 6] * 2]


def test_window_attention_needs_the_windows_queries_alone():
    layer = random_layer([12, 7])
    score = WindowAttention(window=3)
    few = changed(layer, q=layer.q[:, :, -3:], q_pos=layer.q_pos[:, -3:])
    assert score.queries(tokens=100) == 3
    assert_close(score(few).values, score(layer).values)


def test_window_attention_follows_the_models_own_mask():
    layer = random_layer([9], h=1, g=1)
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    mask[..., -2:, 3] = False
    scores = WindowAttention(window=2, pool="none")(changed(layer, mask=mask)).values[0, 0]
    assert scores[3] == 0.0
    for slot in (0, 1, 2, 4, 5, 6):
        weights = [
            softmax_of(layer, 0, 0, i - 9, [s for s in range(i + 1) if s != 3])[slot]
            for i in (7, 8)
        ]
        assert float(scores[slot]) == pytest.approx(sum(weights) / 2, rel=1e-4)


# H2O's score


def passes_of(layer, sizes):
    """The layer as passes of ``sizes`` queries would show it, each with the slots so far."""
    start = 0
    for size in sizes:
        end = start + size
        yield changed(
            layer,
            q=layer.q[:, :, start:end],
            q_pos=layer.q_pos[:, start:end],
            k=layer.k[:, :, :end],
            v=layer.v[:, :, :end],
            pos=layer.pos[:, :, :end],
            mask=None if layer.slots.mask is None else layer.slots.mask[:, :, start:end, :end],
        )
        start = end


def observed_in(score, passes):
    """What has been received after all passes; new slots begin at zero."""
    state = {}
    for layer in passes:
        slots = layer.k.shape[2]
        state = {
            name: torch.nn.functional.pad(t, (0, slots - t.shape[2])) for name, t in state.items()
        }
        state = score.observe(replace(layer, state=state))
    return state


def literal_sums(layer, group):
    """[b, h, n] of a causal prompt."""
    b, h, n = layer.k.shape[:3]
    received = torch.zeros(b, h, layer.groups, n, dtype=torch.float64)
    for row in range(b):
        pad = int((layer.pos[row, 0] < 0).sum())
        for head in range(h):
            for member in range(layer.groups):
                for i in range(pad, n):
                    for slot, weight in softmax_of(
                        layer, row, head * layer.groups + member, i - n, list(range(pad, i + 1))
                    ).items():
                        received[row, head, member, slot] += weight
    return received.mean(2) if group == "mean" else received.amax(2)


@pytest.mark.parametrize("group", ["mean", "max"])
def test_column_sums_are_the_attention_received_from_all_queries(group):
    layer = random_layer([7, 10], g=3)
    score = ColumnSums(group=group)
    state = score.observe(layer)
    received = score(replace(layer, state=state)).values
    assert_close(received.double(), literal_sums(layer, group), rtol=1e-5, atol=1e-6)
    assert score.queries(tokens=100) == 0


@st.composite
def cuts(draw, total=11):
    """Sizes of passes that make up ``total`` queries."""
    ends = [*sorted(draw(st.sets(st.integers(1, total - 1), max_size=4))), total]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@lean
@given(sizes=cuts(), masked=st.booleans(), seed=st.integers(0, 9))
def test_column_sums_of_a_prompt_in_passes_are_those_of_the_prompt_in_one(sizes, masked, seed):
    layer = random_layer([11, 5], seed=seed)
    if masked:
        seen = layer.slots.visible(11).expand(2, 2, 11, 11)
        generator = torch.Generator().manual_seed(seed)
        layer = changed(layer, mask=seen & (torch.rand(seen.shape, generator=generator) < 0.8))
    whole = observed_in(ColumnSums(), [layer])
    parts = observed_in(ColumnSums(), passes_of(layer, sizes))
    assert whole.keys() == parts.keys() == {"received"}
    assert_close(parts["received"], whole["received"], rtol=1e-5, atol=1e-6)


def test_column_sums_go_on_over_slots_that_differ_between_heads():
    """After an eviction: head 0 holds tokens 0, 2, 3 and head 1 tokens 1, 2, 3; 4 is the newest."""
    pos = torch.tensor([[[0, 2, 3, 4], [1, 2, 3, 4]]])
    whole = random_layer([5], g=1)
    k = torch.stack([whole.k[:, head, pos[0, head]] for head in (0, 1)], 1)
    before = torch.tensor([[[3.0, 2.0, 1.0, 0.0], [6.0, 5.0, 4.0, 0.0]]])
    layer = changed(
        whole,
        q=whole.q[:, :, -1:],
        q_pos=torch.tensor([[4]]),
        k=k,
        v=k,
        pos=pos,
        state={"received": before},
    )
    after = ColumnSums().observe(layer)["received"]
    for head in (0, 1):
        weights = softmax_of(whole, 0, head, -1, pos[0, head].tolist())
        expected = [b + w for b, w in zip(before[0, head].tolist(), weights.values(), strict=True)]
        assert after[0, head].tolist() == pytest.approx(expected, rel=1e-5)


def test_column_sums_skip_the_empty_slots_of_shorter_heads():
    """Head 1 holds one token less: an empty slot stands in front of its others."""
    pos = torch.tensor([[[0, 2, 4], [-1, 3, 4]]])
    whole = random_layer([5], g=1)
    k = torch.stack([whole.k[:, head, pos[0, head].clamp_min(0)] for head in (0, 1)], 1)
    layer = changed(
        whole,
        q=whole.q[:, :, -1:],
        q_pos=torch.tensor([[4]]),
        k=k,
        v=k,
        pos=pos,
        state={"received": torch.zeros(1, 2, 3)},
    )
    after = ColumnSums().observe(layer)["received"]
    for head, slots in ((0, [0, 2, 4]), (1, [3, 4])):
        weights = list(softmax_of(whole, 0, head, -1, slots).values())
        assert after[0, head].tolist() == pytest.approx(
            [0.0] * (3 - len(slots)) + weights, rel=1e-5
        )


# Scores without attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_computed_in_float32_key_norms_the_lower_the_better(dtype):
    layer = random_layer([9], d=5)
    layer = replace(layer, k=layer.k.to(dtype), v=layer.v.to(dtype), q=layer.q.to(dtype))
    for values, tensor, sign in (
        (KeyNorm()(layer).values, layer.k, -1),
        (ValueNorm()(layer).values, layer.v, 1),
    ):
        assert values.dtype == torch.float32
        expected = [
            [[sign * math.sqrt(sum(x * x for x in vector)) for vector in head] for head in row]
            for row in tensor.double().tolist()
        ]
        assert_close(values.double(), torch.tensor(expected, dtype=torch.float64))


def test_recency_grows_with_the_position():
    values = Recency()(random_layer([4, 6], h=1)).values
    assert values[0, 0, 2:].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert values[1, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_random_draw_depends_on_seed_layer_head_and_position_alone():
    short, long = random_layer([6], seed=1), random_layer([3, 17, 6], seed=2)
    drawn = RandomScore(seed=5)(short).values[0]
    padded = RandomScore(seed=5)(long).values
    assert torch.equal(padded[2, :, 11:], drawn)
    assert torch.equal(padded[0, :, 14:], drawn[:, :3])
    assert torch.equal(padded[1, :, :6], drawn)
    assert bool(((drawn >= 0) & (drawn < 1)).all())
    others = [
        RandomScore(seed=6)(short).values[0],
        RandomScore(seed=5)(replace(short, ordinal=1)).values[0],
    ]
    assert len({tuple(t.flatten().tolist()) for t in [drawn, *others]}) == 3
    assert drawn[0].tolist() != drawn[1].tolist()


def test_a_random_draw_stays_with_its_token_after_an_eviction():
    layer = random_layer([9])
    drawn = RandomScore()(layer).values
    kept = torch.tensor([[[0, 3, 8], [1, 2, 8]]])
    k = layer.k[:, :, :3]
    later = changed(layer, k=k, v=k, pos=kept)
    assert torch.equal(RandomScore()(later).values, drawn.gather(2, kept))


def test_random_scores_are_spread_evenly():
    q = torch.zeros(1, 4, 2000, 1)
    drawn = RandomScore()(layer_of(q, q)).values.flatten()
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.02)
    for tenth in range(10):
        share = ((drawn >= tenth / 10) & (drawn < (tenth + 1) / 10)).float().mean()
        assert float(share) == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: WindowAttention(window=0), "window=0"),
        (lambda: WindowAttention(window=-3), "window=-3"),
        (lambda: WindowAttention(kernel=4), "kernel=4"),
        (lambda: WindowAttention(kernel=0), "kernel=0"),
        (lambda: WindowAttention(kernel=-1), "kernel=-1"),
        (lambda: WindowAttention(pool="foo"), "pool='foo'"),
        (lambda: WindowAttention(group="sum"), "group='sum'"),
        (lambda: ColumnSums(group="sum"), "group='sum'"),
        (lambda: RandomScore(seed=-1), "seed=-1"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_value(make, value):
    with pytest.raises(InvalidParameter) as refused, unchecked():
        make()
    assert value in str(refused.value)


def test_scores_of_no_tokens_go_back_to_the_slots():
    """A span is empty where sinks and recent tokens are all that a head holds."""
    nothing = TokenSpan(torch.full((1, 2), 3), torch.zeros(1, 2, dtype=torch.long), slots=3)
    assert nothing.put(torch.zeros(1, 2, 0), 7.0).tolist() == [[[7.0] * 3] * 2]
