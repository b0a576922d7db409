"""Parts of several papers in one policy do what the transcriptions of these parts do together."""

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.methods.csp import CrossSelf, CrossSelfAttention
from foveate.methods.david import Decoupled, ModalityFusion
from foveate.methods.mixkv import MixDiversity
from foveate.methods.prefixkv import PrefixBudget
from foveate.stages.budget import Uniform
from foveate.stages.merge import MergeNearest
from foveate.stages.score import WindowAttention
from foveate.stages.select import TopK
from tests.literal import csp, david, lookm, mixkv

from .extended import mixed, prefix_counts, window_means
from .visual import assert_keeps, sets, visual

WINDOW = 6
DEPTH = 4
MERGED = {"rtol": 0, "atol": 1e-5, "check_dtype": False}


def varied(lengths, layouts="two images", *, h=2, seed=0):
    """Layers that differ in how sharply they attend, and in how much to visual tokens."""
    made = visual(lengths, layouts, h=h, g=2, depth=DEPTH, seed=seed)
    for layer, (q, k, _) in enumerate(made.layers):
        q[..., :2] = 8**0.5
        k[..., 0] = torch.where(made.vision[:, None], -(0.6, 1.1, 2.6, 2.7)[layer], 0.0)
        k[..., 3::7, 1] = (2.0, 0.0, 3.0, 1.0)[layer]
    return made


def recent_of(length):
    return list(range(length - WINDOW, length))


def mixed_everywhere(given, row):
    """MixKV's score as the paper has it, of all tokens, for every layer."""
    out = []
    for layer in range(DEPTH):
        q, k, v = given.alone(layer, row)
        out.append(mixed(window_means(q, k, WINDOW).mean(1).tolist(), k, v))
    return out


def flags_of(given, row, threshold):
    """DAVID's switch, layer by layer."""
    if not any(given.images[row]):
        return [False] * DEPTH
    rates = [
        david.ncar(*given.alone(layer, row)[:2], given.images[row], WINDOW)
        for layer in range(DEPTH)
    ]
    return david.decoupled_flags(rates, threshold)


def assert_exact(policy, given, budget):
    """So many pairs of each row over all layers and heads, or all that there are; not the same in
    every layer if the budget is PrefixKV's and leaves more of a choice than 2 tokens.
    """
    held = sum(kept.counts.sum(-1) for kept in given.keeps(policy))
    heads = given.layers[0][1].shape[1] * DEPTH
    assert held.tolist() == [min(budget, length) * heads for length in given.lengths]
    per_layer = torch.stack([kept.counts[0, 0] for kept in given.keeps(policy)])
    if budget > WINDOW + 2:
        assert (len(per_layer.unique()) > 1) == isinstance(policy.budget, PrefixBudget)


def assert_pivotal(policy, given):
    for layer, kept in enumerate(given.keeps(policy)):
        for row, pad in enumerate(given.pads):
            _, k, v = given.alone(layer, row)
            positions = sets(kept, row, pad)
            keys, values = lookm.merge(k, v, positions, "pivotal")
            for head in range(len(k)):
                assert_close(kept.keys(row, head), keys[head], **MERGED)
                assert_close(kept.values(row, head), values[head], **MERGED)


MIXED_EVERYWHERE = MixDiversity(
    of=WindowAttention(window=WINDOW, pool="none"), window=WINDOW, normalise_over="all"
)


@pytest.mark.parametrize("lengths", [[30], [32, 25]])
@pytest.mark.parametrize("budget", [8, 13, 20])
def test_mixkv_on_the_budgets_of_prefixkv_with_the_merge_of_lookm(budget, lengths):
    given = varied(lengths, seed=1)
    policy = foveate.Policy(
        score=MIXED_EVERYWHERE,
        budget=PrefixBudget(amount=budget),
        select=TopK(recent=WINDOW),
        merge=MergeNearest(how="pivotal"),
    )

    def expected(layer, row, tokens):
        scores, length = mixed_everywhere(given, row), given.lengths[row]
        counts = prefix_counts(scores, recent_of(length), tokens)
        return mixkv.kept(scores[layer][:, :-WINDOW], length, WINDOW, counts[layer])

    assert_keeps(policy, given, expected)
    assert_exact(policy, given, budget)
    assert_pivotal(policy, given)


@pytest.mark.parametrize("lengths", [[29], [32, 25], [31, 5, 10]])
@pytest.mark.parametrize("budget", [8, 13, 20])
def test_mixkv_with_the_switch_of_david(budget, lengths):
    layouts = ["two images", "text last", "text"][: len(lengths)]
    given = varied(lengths, layouts, seed=2)
    policy = foveate.Policy(
        score=ModalityFusion(
            of=MixDiversity(of=WindowAttention(window=WINDOW), window=WINDOW), threshold=0.1
        ),
        budget=Uniform(amount=budget),
        select=Decoupled(recent=WINDOW, rho=2.0),
    )

    def expected(layer, row, tokens):
        scores = mixkv.scores(*given.alone(layer, row), WINDOW)
        padded = torch.nn.functional.pad(scores, (0, WINDOW))
        decoupled = flags_of(given, row, 0.1)[layer]
        return david.kept(padded, given.images[row], WINDOW, tokens - WINDOW, 2.0, decoupled)

    assert set(flags_of(given, 0, 0.1)) == {True, False}
    assert_keeps(policy, given, expected)
    assert_exact(policy, given, budget)


@pytest.mark.parametrize("lengths", [[30], [32, 25]])
@pytest.mark.parametrize("budget", [8, 13, 20])
def test_csp_on_the_budgets_of_prefixkv(budget, lengths):
    given = varied(lengths, ["two images", "text last"][: len(lengths)], seed=3)
    policy = foveate.Policy(
        score=CrossSelfAttention(window=WINDOW),
        budget=PrefixBudget(amount=budget),
        select=CrossSelf(recent=WINDOW, cross_ratio=0.3),
    )

    def expected(layer, row, tokens):
        length = given.lengths[row]
        parts = [
            csp.scores(*given.alone(layer, row)[:2], given.images[row], WINDOW, 0)
            for layer in range(DEPTH)
        ]
        sums = [own + cross for own, cross in parts]
        counts = prefix_counts(sums, recent_of(length), tokens)
        own, cross = (part[:, :-WINDOW] for part in parts[layer])
        k = counts[layer] - WINDOW
        chosen = csp.filled_union(own, cross, k - 3 * k // 10, 3 * k // 10)
        return [head + recent_of(length) for head in chosen]

    assert_keeps(policy, given, expected)
    assert_exact(policy, given, budget)


@pytest.mark.parametrize("budget", [8, 13, 20])
def test_mixkv_on_the_budgets_of_prefixkv_with_the_switch_of_david_and_the_merge_of_lookm(budget):
    given = varied([32, 25], seed=4)
    policy = foveate.Policy(
        score=ModalityFusion(of=MIXED_EVERYWHERE, threshold=0.1),
        budget=PrefixBudget(amount=budget),
        select=Decoupled(recent=WINDOW),
        merge=MergeNearest(how="pivotal"),
    )

    def expected(layer, row, tokens):
        scores, length = mixed_everywhere(given, row), given.lengths[row]
        counts = prefix_counts(scores, recent_of(length), tokens)
        decoupled = flags_of(given, row, 0.1)[layer]
        return david.kept(
            scores[layer], given.images[row], WINDOW, counts[layer] - WINDOW, 1.0, decoupled
        )

    assert_keeps(policy, given, expected)
    assert_exact(policy, given, budget)
    assert_pivotal(policy, given)


@pytest.mark.parametrize("budget", [8, 13, 20])
def test_scores_over_the_prefix_alone_have_exact_budgets_of_prefixkv_too(budget):
    """What the window itself weighs in a layer's curve is not part of MixKV; the rest is."""
    given = varied([32, 25], seed=5)
    policy = foveate.mixkv(budget=budget, window=WINDOW).but(budget=PrefixBudget(amount=budget))
    assert_exact(policy, given, budget)
    for layer, kept in enumerate(given.keeps(policy)):
        for row, pad in enumerate(given.pads):
            q, k, v = given.alone(layer, row)
            count = int(kept.counts[row, 0])
            expected = mixkv.kept(mixkv.scores(q, k, v, WINDOW), len(k[0]), WINDOW, count)
            assert sets(kept, row, pad) == expected
