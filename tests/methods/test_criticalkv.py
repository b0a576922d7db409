"""CriticalKV against a slow transcription, and the output projections that it reads off models."""

import math

import pytest
import torch
from torch import nn

import foveate
from foveate.compression.tensors import compress_tensors
from foveate.errors import InvalidInput, InvalidParameter, UnsupportedModel, UnsupportedPolicy
from foveate.hf.layer.projection import output_projections, output_weight
from foveate.methods.criticalkv import OutputNorm
from foveate.stages.score import ValueNorm
from foveate.vllm.plans.settings import check_policy
from tests import zoo
from tests.literal.attention import attention, top
from tests.methods.visual import Visual, sets, visual

PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
}
WINDOW, BUDGET, HIDDEN, EPSILON = 4, 15, 12, 1e-2


def weights_of(given, dtype=torch.float32):
    generator = torch.Generator().manual_seed(9)
    shapes = [(q.shape[1], v.shape[3], HIDDEN) for q, _, v in given.layers]
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def kept(given, policy, weights):
    return compress_tensors(
        policy,
        given.layers,
        vision=given.vision,
        attention_mask=given.mask,
        output_weights=weights,
    )


def scores_of(q, k):
    """SnapKV's, before the window, by KV head."""
    paid = attention(q, k)[:, -WINDOW:, :-WINDOW].mean(1)
    by_head = paid.view(k.shape[0], -1, paid.shape[1]).mean(1)
    pooled = torch.zeros_like(by_head)
    for i in range(by_head.shape[1]):
        pooled[:, i] = by_head[:, max(0, i - 2) : i + 3].sum(-1) / 5
    return pooled


def norms_of(v, weight):
    """Mean of |W_o v| over a KV head's query heads."""
    heads, group = v.shape[0], weight.shape[0] // v.shape[0]
    found = torch.zeros(v.shape[:2], dtype=torch.float64)
    for head in range(heads):
        for one in range(head * group, (head + 1) * group):
            for i, value in enumerate(v[head].double()):
                found[head, i] += (weight[one].double().T @ value).abs().sum() / group
    return found


def two_stages(scores, output, count, share):
    """Positions of one head: the window, the best by score, the best of the rest by output."""
    t = len(scores) + WINDOW
    window = list(range(t - WINDOW, t))
    early = top(scores.tolist(), max(0, math.floor(count * share) - WINDOW))
    rest = [i for i in range(t - WINDOW) if i not in early]
    late = [rest[i] for i in top([float(output[i]) for i in rest], count - WINDOW - len(early))]
    return sorted([*window, *early, *late])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.5, 0.0, 1.0, 0.7])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_both_stages_are_those_of_the_transcription(prompt, share, dtype):
    given = visual(**prompt)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])
    (weight,) = weights_of(given, dtype)
    policy = foveate.criticalkv(budget=BUDGET, window=WINDOW, first=share, epsilon=EPSILON)
    (found,) = kept(given, policy, [weight])
    for row in given.rows():
        q, k, v = given.alone(0, row)
        scores, norms = scores_of(q, k), norms_of(v, weight)
        output = (scores + EPSILON) * norms[:, :-WINDOW]
        expected = [two_stages(*head, BUDGET, share) for head in zip(scores, output, strict=True)]
        assert sets(found, row, given.pads[row]) == expected


def test_with_adakv_heads_keep_what_attention_says_and_the_two_stages_choose():
    """CriticalAdaKV: numbers by attention alone, over all heads; then each head's two stages."""
    given = visual([45], h=3, g=2, seed=5)
    (weight,) = weights_of(given)
    policy = foveate.policy(
        f"criticalkv+adakv:budget={BUDGET},window={WINDOW},floor=0.0",
        epsilon=EPSILON,
    )
    (found,) = kept(given, policy, [weight])
    q, k, v = given.alone(0, 0)
    scores, norms = scores_of(q, k), norms_of(v, weight)
    best = top(scores.flatten().tolist(), 3 * (BUDGET - WINDOW))
    counts = [WINDOW + sum(i // scores.shape[1] == head for i in best) for head in range(3)]
    output = (scores + EPSILON) * norms[:, :-WINDOW]
    assert len(set(counts)) > 1
    assert sets(found) == [
        two_stages(scores[head], output[head], counts[head], 0.5) for head in range(3)
    ]


@pytest.mark.parametrize("floor", [0.0, 0.3, 1.0])
def test_a_guaranteed_floor_is_that_of_kvpress(floor):
    """``CriticalAdaKVPress``: each head's best are lifted, then all heads are ranked as one; the
    best of a head are in its first stage.
    """
    given = visual([45], h=3, g=2, seed=5)
    (weight,) = weights_of(given)
    policy = foveate.policy(
        f"criticalkv+adakv:budget={BUDGET},window={WINDOW},guaranteed=true",
        epsilon=EPSILON,
        floor=floor,
    )
    (found,) = kept(given, policy, [weight])
    q, k, v = given.alone(0, 0)
    scores = torch.nn.functional.pad(scores_of(q, k), (0, WINDOW), value=9.0)
    output = (scores + EPSILON) * norms_of(v, weight)
    safe, t = math.floor(BUDGET * floor), scores.shape[1]
    lifted = [set(top(head.tolist(), safe)) for head in scores]
    ranked = torch.stack(
        [
            head + torch.tensor([99.0 * (i in best) for i in range(t)])
            for head, best in zip(scores, lifted, strict=True)
        ]
    )
    counts = torch.zeros(3, dtype=torch.long)
    for place in top(ranked.flatten().tolist(), 3 * BUDGET):
        counts[place // t] += 1
    expected = []
    for head, count in enumerate(counts.tolist()):
        early = top(scores[head].tolist(), max(math.floor(count / 2), min(safe, count), WINDOW))
        rest = [i for i in range(t) if i not in early]
        late = top([float(output[head, i]) for i in rest], count - len(early))
        expected.append(sorted([*early, *(rest[i] for i in late)]))
    assert sets(found) == expected


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(number):
    given = visual([30, 20], g=2)
    weights, policy = weights_of(given), foveate.criticalkv(budget=12, window=WINDOW)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in qkv) for qkv in given.layers]
    (found,) = kept(Visual(layers, given.images), policy, weights)
    (expected,) = kept(given, policy, weights)
    assert torch.equal(found.mask, expected.mask)


def test_it_wraps_the_score_that_is_there():
    policy = foveate.policy("expected_attention+criticalkv:budget=20%")
    alone = foveate.expected_attention(budget="20%")
    assert policy.score == OutputNorm(of=alone.score)
    assert policy.reads_output_weight
    assert not alone.reads_output_weight


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "gemma3", "mllama"])
def test_a_model_gives_its_own_projections(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    policy = foveate.criticalkv(budget=14, window=WINDOW)
    seen = {}

    class Noted(OutputNorm):
        def __call__(self, layer):
            seen[layer.model_index] = layer
            return super().__call__(layer)

    with foveate.compress(model, policy.but(score=Noted(of=policy.score.of))) as session:
        session.prefill(**inputs)
    modules = dict(model.named_modules())
    for index, layer in seen.items():
        (name,) = (
            n
            for n in modules
            if n.endswith(f"layers.{index}.self_attn.o_proj") and "vision" not in n
        )
        weight = modules[name].weight
        size = layer.v.shape[3]
        for head in range(layer.q.shape[1]):
            columns = weight[:, head * size : (head + 1) * size]
            assert torch.equal(layer.output_weight[head], columns.T)
    assert seen


class Attention(nn.Module):
    def __init__(self, layer_idx, **parts):
        super().__init__()
        self.layer_idx = layer_idx
        for name, part in parts.items():
            setattr(self, name, part)


def conv1d(rows, columns):
    """As GPT-2's: its weight is the other way round."""
    made = type("Conv1D", (nn.Module,), {})()
    made.weight = nn.Parameter(torch.randn(rows, columns))
    return made


def test_projections_of_other_names_and_shapes_are_found():
    dense, conv = nn.Linear(8, 6), conv1d(8, 6)
    decoder = nn.ModuleList(
        [Attention(0, dense=dense, query=nn.Linear(8, 8)), Attention(1, c_proj=conv)]
    )
    found = output_projections(decoder, [0, 1])
    assert torch.equal(output_weight(found, 0, 2, 4)[1], dense.weight.T[4:])
    assert torch.equal(output_weight(found, 1, 2, 4)[1], conv.weight[4:])
    with pytest.raises(UnsupportedModel, match="has 8 inputs, and 3 heads of 4 have 12"):
        output_weight(found, 0, 3, 4)


def codes():
    made = nn.Linear(8, 8)
    made.weight = nn.Parameter(torch.zeros(4, 8, dtype=torch.uint8), requires_grad=False)
    return made


def adapted():
    made = nn.Linear(8, 8)
    made.base_layer = nn.Linear(8, 8)
    return made


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ([Attention(0, out=nn.Linear(8, 8))], "none of the names"),
        ([Attention(0, o_proj=codes())], "no plain matrix"),
        ([Attention(0, o_proj=adapted())], "Merge adapters"),
        ([Attention(0, o_proj=nn.Linear(8, 8, device="meta"))], "meta device"),
        (
            [Attention(0, o_proj=nn.Linear(8, 8))] * 1 + [Attention(0, o_proj=nn.Linear(8, 8))],
            "more than one",
        ),
        ([Attention(1, o_proj=nn.Linear(8, 8))], r"layers \[0\]"),
    ],
)
def test_a_projection_that_cannot_be_read_is_refused(modules, said):
    with pytest.raises(UnsupportedModel, match=said):
        output_projections(nn.ModuleList(modules), [0])


def test_a_model_whose_projection_is_not_found_is_refused_at_entry():
    model = zoo.fresh("llama")
    attention_module = model.model.layers[1].self_attn
    attention_module.elsewhere = attention_module.o_proj
    del attention_module.o_proj
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.self_attn"):
        foveate.compress(model, "criticalkv:budget=20%")
    foveate.compress(model, "snapkv:budget=20%")


def test_what_has_no_projection_says_so():
    given = visual([40])
    policy = foveate.criticalkv(budget=14, window=WINDOW)
    with pytest.raises(InvalidInput, match="output_weights="):
        given.keeps(policy)
    with pytest.raises(InvalidInput, match=r"\(query heads, value size\) \[\(2, 8\)\]"):
        kept(given, policy, [torch.zeros(2, 4, 8)])
    with pytest.raises(InvalidParameter, match="output_norm"):
        given.keeps(policy.but(score=ValueNorm()))
    with pytest.raises(UnsupportedPolicy, match="output projection"):
        check_policy(policy)
