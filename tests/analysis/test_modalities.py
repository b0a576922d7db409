"""What text and images receive, and self- and cross-attention, are what loops over tokens find."""

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from foveate_lab import analysis
from tests.methods.visual import visual

WINDOW, BINS = 6, 12
PROMPTS = {
    "one row": visual([21], ["two images"], h=2, g=2, depth=2, seed=1),
    "no groups": visual([17], ["text last"], h=3, g=1, depth=2, seed=2),
    "a padded row": visual([20, 14], ["two images", "text last"], h=2, g=2, depth=2, seed=3),
}


@pytest.fixture(params=PROMPTS.values(), ids=PROMPTS)
def given(request):
    return request.param


def attention(given, layer, row):
    """Of one row without its padding, [hq, n, n], by softmax over what each query sees."""
    q, k, _ = (t.double() for t in given.alone(layer, row))
    n, g = k.shape[1], q.shape[0] // k.shape[0]
    paid = torch.zeros(q.shape[0], n, n, dtype=torch.float64)
    for head in range(q.shape[0]):
        for i in range(n):
            logits = (k[head // g, : i + 1] @ q[head, i]) / math.sqrt(q.shape[-1])
            paid[head, i, : i + 1] = logits.softmax(-1)
    return paid


def test_what_a_token_receives_is_counted_in_even_shares(given):
    measured = analysis.received(given.layers, given.vision, given.mask)
    for layer in range(len(given.layers)):
        for row in given.rows():
            paid, kinds = attention(given, layer, row).mean(0), given.images[row]
            n = len(kinds)
            shares = [
                sum(float(paid[i, j]) for i in range(j, n)) / sum(1 / (i + 1) for i in range(j, n))
                for j in range(n)
            ]
            for kind, found in ((False, measured[layer].text), (True, measured[layer].visual)):
                of_kind = [s for j, s in enumerate(shares) if j > 0 and kinds[j] == kind]
                assert float(found[row]) == pytest.approx(sum(of_kind) / len(of_kind), rel=1e-4)


def test_without_images_the_visual_share_is_no_number():
    given = visual([12], ["text"], h=1, g=1, depth=1, seed=5)
    (found,) = analysis.received(given.layers, given.vision, given.mask)
    assert bool(found.visual.isnan().all())
    assert bool(found.text.isfinite().all())


def test_weights_are_sorted_by_whether_query_and_key_are_of_one_kind(given):
    measured = analysis.self_and_cross(
        given.layers, given.vision, given.mask, window=WINDOW, bins=BINS
    )
    for layer in range(len(given.layers)):
        for row in given.rows():
            paid, kinds = attention(given, layer, row), given.images[row]
            n = len(kinds)
            counts = {True: [0] * BINS, False: [0] * BINS}
            for head in paid:
                for i in range(n - WINDOW, n):
                    for j in range(i + 1):
                        place = (math.log10(max(float(head[i, j]), 1e-8)) + 8) / 8 * BINS
                        counts[kinds[i] == kinds[j]][min(BINS - 1, int(place))] += 1
            expected = [[c / sum(counts[kind]) for c in counts[kind]] for kind in (True, False)]
            assert measured[layer].within[row].tolist() == pytest.approx(expected[0], abs=1e-5)
            assert measured[layer].across[row].tolist() == pytest.approx(expected[1], abs=1e-5)
            bits = jensenshannon(*expected, base=2) ** 2
            assert float(measured[layer].divergence[row]) == pytest.approx(bits, abs=1e-5)
            assert 0 < bits < 1
