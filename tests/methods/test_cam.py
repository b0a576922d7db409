"""CaM against a slow transcription; its draws are fair, and follow from seed and position."""

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidParameter
from foveate.stages.score import KeyNorm
from foveate.stages.score.attention_free import uniform
from tests.literal import cam
from tests.literal.attention import attention, top
from tests.methods.visual import Visual, sets, visual

PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
    "three queries a head": {"lengths": [33, 40], "g": 3, "depth": 2},
}
BUDGET, RECENT = 12, 3


def received(q, k):
    """H2O's sums, by KV head."""
    return attention(q, k).sum(1).view(k.shape[0], -1, k.shape[1]).mean(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("into", [1, 4, 32])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_values_are_those_of_the_transcription(prompt, into, sampled, dtype):
    given = visual(**prompt)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])
    policy = foveate.cam(budget=BUDGET, recent=RECENT, into=into, sampled=sampled, seed=5)
    merged = 0
    for layer, kept in enumerate(given.keeps(policy)):
        for row in given.rows():
            q, k, v = given.alone(layer, row)
            sums, t = received(q, k), k.shape[1]
            for head, places in enumerate(sets(kept, row, given.pads[row])):
                old = top(sums[head, : t - RECENT].tolist(), BUDGET - RECENT)
                assert places == sorted([*old, *range(t - RECENT, t)])

                def drawn(place, layer=layer, head=head):
                    return float(uniform(5, *(torch.tensor(x) for x in (layer, head, place))))

                said = sums[head].tolist() if sampled else None
                expected = cam.merge(v[head], places, into, said, drawn)[places]
                assert_close(kept.values(row, head), expected.to(dtype), atol=1e-5, rtol=1e-5)
                assert torch.equal(kept.keys(row, head), k[head, places])
                merged += int((kept.values(row, head) != v[head, places]).any())
    assert merged


def test_what_stands_at_padding_does_not_matter():
    given, policy = visual([30, 20], g=2), foveate.cam(budget=12)
    (kept,) = given.keeps(policy)
    padding = given.mask[:, None, :, None] == 0
    for number in (float("nan"), float("inf")):
        layers = [tuple(x.masked_fill(padding, number) for x in qkv) for qkv in given.layers]
        (found,) = Visual(layers, given.images).keeps(policy)
        assert torch.equal(found.mask, kept.mask)
        assert torch.equal(found.v[found.mask], kept.v[kept.mask])


def test_a_pair_merges_as_often_as_its_chance_says():
    """One pair is evicted, with half of what the one after it has received."""
    given = visual([4], h=1, layout="text", seed=3)
    (q, k, v) = (x.clone() for x in given.layers[0])
    policy = foveate.cam(budget=3, recent=1, into=1)
    sums = received(*(x[0] for x in (q, k)))[0]
    (gone,) = [i for i in range(3) if i not in top(sums[:3].tolist(), 2)]
    expected = min(1.0, float(sums[gone] / sums[gone + 1]))
    assert 0.1 < expected < 0.9
    found = 0
    for seed in range(400):
        (kept,) = given.keeps(policy.but(seed=seed))
        found += not torch.equal(kept.values(0, 0), v[0, 0, kept.positions(0, 0)])
    assert abs(found / 400 - expected) < 0.1


def test_it_merges_under_another_score_that_is_attention_and_refuses_others():
    given = visual([40], g=2)
    kept, plain = (
        given.keeps(foveate.policy(spec, window=4))[0]
        for spec in ("snapkv+cam:budget=12", "snapkv:budget=12")
    )
    assert torch.equal(kept.mask, plain.mask)
    assert not torch.equal(kept.v[kept.mask], plain.v[plain.mask])
    with pytest.raises(InvalidParameter, match="below zero"):
        given.keeps(foveate.cam(budget=12).but(score=KeyNorm()))
