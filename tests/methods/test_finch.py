"""FINCH against a slow transcription: what the question pays, and the same share of chunks."""

import pytest
import torch

import foveate
from foveate.methods.finch import TopKOfChunks
from tests.literal.attention import attention, top
from tests.methods.visual import assert_keeps, sets, visual

PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
    "three queries a head": {"lengths": [33, 40], "g": 3},
}
WINDOW = 5


def scores_of(q, k, normalised, group):
    """[h, t - window], as FinchPress has them: rows times their index, then means."""
    t = k.shape[1]
    paid = attention(q, k)[:, -WINDOW:, :-WINDOW]
    if normalised:
        paid = torch.stack([paid[:, i] * (t - WINDOW + i) for i in range(WINDOW)], 1)
    means = paid.mean(1).view(k.shape[0], -1, t - WINDOW)
    return means.mean(1) if group == "mean" else means.amax(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", ["mean", "max"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_the_questions_choice_is_that_of_the_transcription(prompt, normalised, group, dtype):
    given = visual(**prompt)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])

    def literal(layer, row, tokens):
        q, k, _ = given.alone(layer, row)
        t = k.shape[1]
        return [
            sorted([*top(head.tolist(), tokens - WINDOW), *range(t - WINDOW, t)])
            for head in scores_of(q, k, normalised, group)
        ]

    policy = foveate.finch(budget=14, window=WINDOW, normalised=normalised, group=group)
    assert_keeps(policy, given, literal)
    scored = given.scored(policy)[0]
    for row in given.rows():
        q, k, _ = given.alone(0, row)
        ours = scored.raw[row, :, given.pads[row] : -WINDOW]
        torch.testing.assert_close(
            ours.double(), scores_of(q, k, normalised, group), atol=1e-5, rtol=1e-5
        )


def test_chunks_keep_what_kvpress_keeps_of_each_by_itself():
    """``FinchPress(0.5, chunk_length=10)``, of 40 tokens: five of each ten, the window first."""
    given = visual([40], h=3, g=2, layout="text", seed=2)
    q, k, _ = given.alone(0, 0)
    scores = scores_of(q, k, True, "mean")
    padded = torch.nn.functional.pad(scores, (0, WINDOW), value=float(scores.max()) + 1)
    expected = []
    for head in padded:
        parts = (head[i : i + 10].topk(5).indices + i for i in range(0, 40, 10))
        expected.append(sorted(int(i) for part in parts for i in part))
    (found,) = given.keeps(foveate.finch(budget="50%", window=WINDOW, chunk=10))
    assert sets(found) == expected


@pytest.mark.parametrize("budget", [5, 8, 13, 21])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_whatever_the_chunks_the_budget_is_exact_and_shares_differ_by_rounding(budget, chunk):
    given = visual([43, 29, 21], g=2)
    policy = foveate.finch(budget=budget, window=WINDOW, chunk=chunk)
    (found,) = given.keeps(policy)
    (free,) = given.keeps(policy.but(select=TopKOfChunks(length=chunk)))
    for row, (length, pad) in enumerate(zip(given.lengths, given.pads, strict=True)):
        assert found.counts[row].tolist() == [budget] * 2
        for head in sets(free, row, pad):
            kept = [sum(i // chunk == c for i in head) for c in range(length // chunk)]
            whole = [budget * chunk / length] * len(kept)
            assert all(abs(a - b) < 2 for a, b in zip(kept, whole, strict=True))
