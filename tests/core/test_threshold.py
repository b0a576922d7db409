"""auto(share): the smallest budget whose kept pairs hold that share of what matters."""

from dataclasses import replace

import pytest
import torch

import foveate
from foveate.compression.pipeline import keep, matters, observed, score
from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount
from foveate.stages.budget import EachHead, OneRanking, Uniform
from tests.stages.layers import random_layer

LENGTHS = (40, 31)


def layers(policy, count=2):
    """Scored layers of a left-padded batch, each row with the budget that is known beforehand."""
    image = torch.where(torch.arange(max(LENGTHS)) < 25, 0, -1)
    facts = {"image": image.expand(2, 2, -1), "q_image": image.expand(2, -1), "depth": count}
    given = [random_layer(LENGTHS, seed=s, ordinal=s, **facts) for s in range(count)]
    return [scored_at(policy, one) for one in given]


def scored_at(policy, layer):
    """The layer's scores at the budget that is known beforehand."""
    budgets = policy.tokens(layer.slots.lengths, 1)
    layer = replace(layer, slots=layer.slots.with_budget(budgets))
    return score(policy, replace(layer, state=observed(policy, layer)))


def held(policy, scored, counts):
    """The share of the importance that top-k of these counts keeps, per row."""
    masks = [policy.select(one, count) for one, count in zip(scored, counts, strict=True)]
    weights = [matters(one) for one in scored]
    kept = sum((w * m).sum((1, 2)) for w, m in zip(weights, masks, strict=True))
    return kept / sum(w.sum((1, 2)) for w in weights)


@pytest.mark.parametrize(
    "spec",
    [
        "snapkv:window=4",
        "adakv:window=4",
        "h2o",
        "keydiff",
        "csp",
        "pyramidkv:window=4",
        "prefixkv:when=after_prefill",
        "knorm:budget=one_ranking(amount=1)",
    ],
)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_smallest_budget_that_holds_the_share_is_found(spec, share):
    policy = foveate.policy(spec, budget=f"auto({share},floor=4)")
    scored = layers(policy)
    for group in [scored] if policy.scope == "model" else [[one] for one in scored]:
        kept = keep(policy, group)
        counts = [one.counts for one in kept]
        heads = sum(count.shape[1] for count in counts)
        tokens = sum(count.sum(-1) for count in counts) // heads
        assert (held(policy, group, counts) >= share - 1e-9).all()
        for row, found in enumerate(tokens.tolist()):
            if found > 4 and policy.planned is None:
                less = tokens.clone()
                less[row] -= 1
                fewer = policy.budget([replace(one, tokens=less) for one in group], less)
                assert held(policy, group, fewer)[row] < share


def test_each_head_keeps_what_holds_the_share_of_its_own():
    policy = foveate.knorm(budget="50%").but(budget=EachHead(amount="auto(0.7,floor=1)"))
    (scored, _) = layers(policy)
    (kept,) = keep(policy, [scored])
    weights = matters(scored)
    for row in range(2):
        for head in range(2):
            ranked = weights[row, head].sort(descending=True).values
            count = int(kept.counts[row, head])
            share = ranked.cumsum(0) / ranked.sum()
            assert share[count - 1] >= 0.7 - 1e-9 > share[count - 2]


def test_a_row_finds_the_same_alone_and_beside_others():
    policy = foveate.snapkv(budget="auto(0.8)", window=4)
    (both, _) = layers(policy)
    alone = random_layer((LENGTHS[0],), seed=0)
    whole = random_layer(LENGTHS, seed=0)
    alone = replace(alone, q=whole.q[:1], k=whole.k[:1], v=whole.v[:1])
    (kept,), (single,) = keep(policy, [both]), keep(policy, [scored_at(policy, alone)])
    assert torch.equal(kept.mask[:1], single.mask)


def test_floor_and_cap_bound_what_is_kept():
    for text, expected in (("auto(0.0001,floor=25%)", (10, 7)), ("auto(1,cap=30%)", (12, 9))):
        policy = foveate.knorm(budget=text)
        (kept, _) = (keep(policy, [one])[0] for one in layers(policy))
        assert kept.counts[:, 0].tolist() == list(expected)


def test_an_easy_prompt_keeps_less_than_a_hard_one():
    policy = foveate.knorm(budget="auto(0.9,floor=1)")
    plain = random_layer((64,), seed=3)
    few = torch.full_like(plain.k, 10.0)
    few[:, :, :5] = 0.1  # low norms matter
    counts = []
    for k in (few, plain.k):
        one = scored_at(policy, replace(plain, k=k))
        counts.append(int(keep(policy, [one])[0].counts.max()))
    assert counts[0] == 5 < counts[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("auto(1.5)", "asks for 1.5"),
        ("auto(0)", "asks for 0"),
        ("auto(x)", "asks for x"),
        ("auto(0.9, least=3)", "least=3"),
        ("auto(0.9, floor=50%, cap=10%)", "floor is above the cap"),
        ("auto(0.9, cap=64MB)", "shares or tokens"),
        ("auto(0.9, cap=0)", "keeps nothing"),
        ("auto(0.9, floor=1%, floor=2%)", "floor=1%, floor=2%"),
    ],
)
def test_what_is_no_share_is_refused(text, says):
    with pytest.raises(InvalidBudget, match=says.replace("(", r"\(")):
        Amount.of(text)
    with pytest.raises(InvalidBudget):
        foveate.policy(f"snapkv:budget={text}")


@pytest.mark.parametrize("text", ["auto(98%)", "auto(0.98, floor=3%)", "auto(0.5,cap=64)"])
def test_it_prints_and_reads_back(text):
    policy = foveate.policy(f"snapkv:budget={text},window=2")
    assert foveate.policy(policy.spec) == policy
    assert foveate.policy(policy.spec).spec == policy.spec


def test_rules_that_compress_again_need_a_size():
    with pytest.raises(InvalidBudget, match="compresses again"):
        foveate.policy("h2o:budget=auto(0.9),when=over_budget")
    with pytest.raises(InvalidBudget, match="has no total"):
        foveate.snapkv(budget="20%").but(budget=EachHead(amount="20%"))


def test_one_ranking_is_the_top_of_all_heads_and_layers():
    policy = foveate.vnorm(budget="30%").but(budget=OneRanking(amount="30%"))
    scored = layers(policy)
    kept = keep(policy, scored)
    for row, length in enumerate(LENGTHS):
        values = torch.cat([one.scores.values[row].flatten() for one in scored])
        marked = torch.cat([one.mask[row].flatten() for one in kept])
        total = length * 3 // 10 * 4
        assert marked.sum() == total
        assert set(values[marked].tolist()) == set(values.topk(total).values.tolist())
    even = foveate.vnorm(budget="30%").but(budget=OneRanking(amount="30%", floor=1.0))
    counts = [one.counts for one in keep(even, layers(even))]
    uniform = Uniform(amount="30%")(scored, scored[0].tokens)
    assert all(torch.equal(a, b) for a, b in zip(counts, uniform, strict=True))
