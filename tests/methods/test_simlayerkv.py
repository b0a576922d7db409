"""SimLayerKV against a slow transcription: how lazy layers are, and which of them are full."""

import pytest
import torch

import foveate
from tests.literal.attention import attention
from tests.methods.visual import sets, visual

DEPTH, SINKS, RECENT = 4, 2, 5


def laziness(q, k, last):
    """The mean over heads and the last queries of what they pay to sinks and recent tokens."""
    rows = attention(q, k)[:, -last:]
    return float(sum(row[:SINKS].sum() + row[-RECENT:].sum() for row in rows.flatten(0, 1))) / (
        rows.shape[0] * rows.shape[1]
    )


def literal(measured, length, tokens):
    """Positions of each layer: the least lazy ones whole, one in part, the others their ends."""
    ends = SINKS + RECENT
    left = DEPTH * (tokens - ends)
    found = {}
    for layer in sorted(range(DEPTH), key=lambda i: measured[i]):
        more = min(left, length - ends)
        found[layer] = [*range(SINKS), *range(length - RECENT - more, length)]
        left -= more
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("budget", [7, 12, "50%", "80%"])
@pytest.mark.parametrize("lengths", [[40], [40, 29, 33]], ids=["alone", "left-padded"])
def test_the_least_lazy_layers_keep_all(lengths, budget, last, dtype):
    given = visual(lengths, g=2, depth=DEPTH, seed=1)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])
    policy = foveate.simlayerkv(budget=budget, sinks=SINKS, recent=RECENT, last=last)
    kept, scored = given.keeps(policy), given.scored(policy)
    for row, length in enumerate(lengths):
        measured = [laziness(*given.alone(layer, row)[:2], last) for layer in range(DEPTH)]
        ours = [float(one.scores.notes["lazy"][row]) for one in scored]
        assert ours == pytest.approx(measured, abs=1e-5)
        tokens = int(policy.amount.tokens(torch.tensor([length]), 0))
        expected = literal(measured, length, tokens)
        for layer, one in enumerate(kept):
            assert sets(one, row, given.pads[row]) == [expected[layer]] * 2


def test_a_budget_of_whole_layers_is_a_threshold():
    """The release's rule: with a threshold between two layers, the lazier ones keep their ends."""
    given = visual([40], depth=DEPTH, seed=1)
    measured = [laziness(*given.alone(layer, 0)[:2], 1) for layer in range(DEPTH)]
    threshold = sum(sorted(measured)[1:3]) / 2
    ends = SINKS + RECENT
    expected = [ends if lazy > threshold else 40 for lazy in measured]
    policy = foveate.simlayerkv(budget=sum(expected) // DEPTH, sinks=SINKS, recent=RECENT)
    found = [one.counts[0].tolist() for one in given.keeps(policy)]
    assert sum(map(sum, found)) == sum(expected) // DEPTH * DEPTH * 2
    assert all(abs(n - m) <= DEPTH for ns, m in zip(found, expected, strict=True) for n in ns)


def test_the_layer_at_the_border_goes_by_the_score_that_is_wrapped():
    given = visual([40], depth=DEPTH, seed=1)
    policy = foveate.policy("snapkv+simlayerkv:budget=16,window=4", sinks=SINKS, recent=RECENT)
    kept = given.keeps(policy)
    assert sum(int(one.counts.sum()) for one in kept) == 16 * DEPTH * 2
    (partial,) = [one for one in kept if SINKS + RECENT < int(one.counts[0, 0]) < 40]
    assert sets(partial)[0] != sets(partial)[1]
