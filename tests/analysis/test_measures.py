"""Redundancy, importance, diversity, concentration and fusion are what loops over tokens find."""

import math

import pytest
import torch
from torch.testing import assert_close

from foveate.errors import InvalidInput
from foveate_lab import analysis
from tests.literal import david, mixkv, prefixkv
from tests.methods.visual import visual

WINDOW = 6
CLOSE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
PROMPTS = {
    "one row": visual([21], h=2, g=2, depth=3, seed=1),
    "no groups": visual([17], h=3, g=1, depth=2, seed=2),
    "a padded row": visual([20, 14], ["two images", "text last"], h=2, g=2, depth=2, seed=3),
    "hardly longer than the window": visual([WINDOW + 1, 19], h=1, g=3, depth=2, seed=4),
}
MEASURES = {
    "redundancy": analysis.redundancy,
    "diversity": analysis.diversity,
    "importance": lambda *args: analysis.importance(*args, window=WINDOW),
    "lorenz": analysis.lorenz,
    "gini": analysis.gini,
}


def concentrated(given):
    """Half the keys of a head close to one direction, and later layers attend to fewer tokens."""
    for layer, (q, k, _) in enumerate(given.layers):
        q[..., 0] = 3
        k[:, 0, ::2, 1] = 4
        k[..., 3::7, 0] = 3 * layer
    return given


for each in PROMPTS.values():
    concentrated(each)


def rows_of(given):
    """Every layer and row, with the columns of padding in front of it."""
    return [
        (layer, row, given.pads[row]) for layer in range(len(given.layers)) for row in given.rows()
    ]


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.fixture(params=PROMPTS.values(), ids=PROMPTS)
def given(request):
    return request.param


# ------------------------------------------------------------------- against loops and literals


def test_redundancy_is_the_mean_cosine_of_all_pairs_of_different_keys(given):
    measured = analysis.redundancy(given.layers, given.mask)
    for layer, row, _ in rows_of(given):
        keys = given.alone(layer, row)[1].double()
        for head, of_head in enumerate(keys):
            n = len(of_head)
            total = sum(
                cosine(of_head[i], of_head[j]) for i in range(n) for j in range(n) if i != j
            )
            expected = max(0.0, total / (n * (n - 1)))
            assert measured[layer][row, head].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert max(float(each.max()) for each in measured) > 0.05


def test_redundancy_is_zero_where_keys_point_apart_and_one_where_they_are_copies():
    apart = torch.eye(4)[[0, 0, 1, 1]] * torch.tensor([[1.0], [-2.0], [3.0], [-1.0]])
    copies = torch.ones(4, 4) * torch.tensor([[1.0], [0.5], [3.0], [1.0]])
    k = torch.stack([apart, copies])[None]
    assert float(mixkv.redundancy(k[0])[0]) < 0
    assert_close(analysis.redundancy([(k, k, k)])[0], torch.tensor([[0.0, 1.0]]))


def test_diversity_is_minus_the_mean_cosine_to_all_keys(given):
    """The mean over all of the normalised keys, so the cosine of a key to itself counts."""
    measured = analysis.diversity(given.layers, given.mask)
    for layer, row, pad in rows_of(given):
        keys = given.alone(layer, row)[1].double()
        for head, of_head in enumerate(keys):
            unit = [key / key.norm() for key in of_head]
            expected = [-sum(float(a @ b) / len(unit) for b in unit) for a in unit]
            assert_close(measured[layer][row, head, pad:], torch.tensor(expected), **CLOSE)


@pytest.mark.parametrize("pooling", [{}, {"kernel": 3}, {"pool": "none"}], ids=str)
def test_importance_is_equation_2_for_the_tokens_before_the_window(given, pooling):
    measured = analysis.importance(given.layers, given.mask, window=WINDOW, **pooling)
    named = {"kernel": pooling.get("kernel", 5), "pooled": "pool" not in pooling}
    for layer, row, pad in rows_of(given):
        expected = mixkv.scores(*given.alone(layer, row), WINDOW, mix="importance", **named)
        end = pad + expected.shape[1]
        assert end == given.columns - WINDOW
        assert_close(measured[layer][row, :, pad:end], expected, **CLOSE)


def test_importance_has_a_window_of_32_unless_told_otherwise():
    given = visual([50], h=2, g=2, seed=5)
    (measured,) = analysis.importance(given.layers)
    expected = mixkv.scores(*given.alone(0, 0), 32, mix="importance")
    assert_close(measured[0, :, :18], expected, **CLOSE)


def test_lorenz_is_the_share_of_the_most_important_tokens(given):
    measured = analysis.lorenz(given.layers, given.mask)
    for layer, row, pad in rows_of(given):
        importance = prefixkv.importance(*given.alone(layer, row)[:2])
        length = given.columns - pad
        curve = measured[layer][row]
        assert_close(curve[:length], prefixkv.curve(importance), **CLOSE)
        assert_close(curve[length - 1 :], torch.ones(pad + 1), **CLOSE)
        assert bool((curve.diff() >= 0).all())


def test_the_first_point_of_a_lorenz_curve_is_the_greatest_share_of_a_token():
    given = PROMPTS["one row"]
    for layer, curve in enumerate(analysis.lorenz(given.layers)):
        importance = prefixkv.importance(*given.alone(layer, 0)[:2])
        greatest = float(importance.max()) / math.fsum(importance.tolist())
        assert curve[0, 0].item() == pytest.approx(greatest, rel=1e-4)


def test_gini_is_twice_the_area_between_the_curve_and_the_line_of_equality(given):
    measured = analysis.gini(given.layers, given.mask)
    for layer, row, _ in rows_of(given):
        importance = prefixkv.importance(*given.alone(layer, row)[:2])
        found = measured[layer][row].item()
        assert found == pytest.approx(prefixkv.gini(importance), rel=1e-4)
        assert found == pytest.approx(2 * prefixkv.area(importance), rel=1e-4)
        differences = sum(abs(a - b) for a in importance.tolist() for b in importance.tolist())
        by_pairs = differences / (2 * len(importance) * float(importance.sum()))
        assert found == pytest.approx(by_pairs, rel=1e-4)


def test_gini_is_greater_where_attention_is_more_concentrated():
    layers = concentrated(visual([40], depth=4, seed=6)).layers
    found = [float(each) for each in analysis.gini(layers)]
    assert found[0] < found[-1]
    q = torch.zeros(1, 1, 1, 4)
    assert float(analysis.gini([(q, q, q)])[0]) == 0.0  # one token has its even share


def test_ncar_is_what_visual_tokens_get_over_an_even_share(given):
    measured = analysis.ncar(given.layers, given.vision, given.mask, window=WINDOW)
    for layer, row, _ in rows_of(given):
        expected = david.ncar(*given.alone(layer, row)[:2], given.images[row], WINDOW)
        assert measured[layer][row].item() == pytest.approx(expected, rel=1e-4)


def test_ncar_has_a_window_of_32_unless_told_otherwise():
    given = visual([50], h=2, g=2, seed=7)
    (measured,) = analysis.ncar(given.layers, given.vision)
    expected = david.ncar(*given.alone(0, 0)[:2], given.images[0], 32)
    assert measured.item() == pytest.approx(expected, rel=1e-4)


def test_all_queries_of_a_row_count_if_they_are_fewer_than_the_window():
    given = visual([20, 4], "two images", h=2, g=2, seed=9)
    (measured,) = analysis.ncar(given.layers, given.vision, given.mask, window=WINDOW)
    assert any(given.images[1])
    expected = david.ncar(*given.alone(0, 1)[:2], given.images[1], 4)
    assert measured[1].item() == pytest.approx(expected, rel=1e-4)


def test_ncar_is_zero_without_images_and_one_with_nothing_else():
    for layout, expected in (("text", 0.0), ("image", 1.0)):
        given = visual([20, 13], layout, depth=2, seed=8)
        for each in analysis.ncar(given.layers, given.vision, given.mask, window=WINDOW):
            assert_close(each, torch.full((2,), expected))


# ------------------------------------------------------------------- batches


def alone(given, row, name):
    """A measure of one row without its padding."""
    pad = given.pads[row]
    layers = [tuple(x[row : row + 1, :, pad:] for x in layer) for layer in given.layers]
    if name == "ncar":
        return analysis.ncar(layers, given.vision[row : row + 1, pad:], window=WINDOW)
    return MEASURES[name](layers)


def together(given, name):
    if name == "ncar":
        return analysis.ncar(given.layers, given.vision, given.mask, window=WINDOW)
    return MEASURES[name](given.layers, given.mask)


@pytest.mark.parametrize("name", [*MEASURES, "ncar"])
@pytest.mark.parametrize("which", ["a padded row", "hardly longer than the window"])
def test_a_row_of_a_batch_measures_what_it_measures_alone(which, name):
    given = PROMPTS[which]
    measured = together(given, name)
    for row, pad in enumerate(given.pads):
        for ours, lone in zip(measured, alone(given, row, name), strict=True):
            mine = ours[row]
            if name in ("diversity", "importance"):
                mine = mine[:, pad:]
            if name == "importance":  # it is defined before the window
                mine, lone = mine[:, :-WINDOW], lone[..., :-WINDOW]
            if name == "lorenz":
                mine = mine[: given.columns - pad]
            assert_close(mine, lone[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [*MEASURES, "ncar"])
def test_what_stands_in_the_padding_does_not_matter(name):
    given = PROMPTS["a padded row"]
    changed = [tuple(x.clone() for x in layer) for layer in given.layers]
    pad = given.pads[1]
    for layer in changed:
        for x in layer:
            x[1, :, :pad] = 1e3
    other, measured = given._replace(layers=changed), together(given, name)
    for ours, theirs in zip(measured, together(other, name), strict=True):
        if name in ("diversity", "importance"):
            ours, theirs = ours[..., pad:], theirs[..., pad:]
        assert torch.equal(ours, theirs)


def test_a_mask_of_booleans_is_a_mask_of_ones_and_zeros():
    given = PROMPTS["a padded row"]
    for measure in MEASURES.values():
        for a, b in zip(
            measure(given.layers, given.mask), measure(given.layers, given.mask.bool()), strict=True
        ):
            assert torch.equal(a, b)


# ------------------------------------------------------------------- shapes and types

SHAPES = {
    "redundancy": (2, 2),
    "diversity": (2, 2, 20),
    "importance": (2, 2, 20),
    "lorenz": (2, 20),
    "gini": (2,),
    "ncar": (2,),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHAPES)
def test_each_layer_has_one_tensor_of_single_or_double_precision(name, dtype):
    given = PROMPTS["a padded row"]
    cast = given._replace(layers=[tuple(x.to(dtype) for x in layer) for layer in given.layers])
    measured = together(cast, name)
    assert isinstance(measured, list)
    assert len(measured) == len(given.layers) == 2
    for ours, exact in zip(measured, together(given, name), strict=True):
        assert ours.shape == SHAPES[name]
        assert ours.dtype in (torch.float32, torch.float64)
        assert bool(ours.isfinite().all())
        tolerance = 0.1 if dtype in (torch.float16, torch.bfloat16) else 1e-4
        assert_close(ours, exact, rtol=tolerance, atol=tolerance / 10, check_dtype=False)


def test_values_may_be_wider_than_keys():
    given = PROMPTS["one row"]
    wide = [(q, k, torch.cat([v, v, v], dim=-1)) for q, k, v in given.layers]
    measured = analysis.importance(wide, window=WINDOW)
    for ours, theirs in zip(
        measured, analysis.importance(given.layers, window=WINDOW), strict=True
    ):
        assert_close(ours, theirs)  # norms, scaled by their minimum and maximum


def test_all_measures_are_public_and_documented():
    others = ["Searched", "prefix_search"]  # tests/analysis/test_prefixes.py
    others += ["received", "self_and_cross"]  # tests/analysis/test_modalities.py
    assert sorted([*MEASURES, "ncar", *others]) == sorted(analysis.__all__)
    assert all(getattr(analysis, name).__doc__ for name in analysis.__all__)


@pytest.mark.parametrize("name", [*MEASURES, "ncar"])
def test_what_does_not_fit_is_refused(name):
    given = PROMPTS["a padded row"]
    right = given._replace(images=[[False] * 20] * 2)  # no padding
    measure = MEASURES.get(name, lambda *args: analysis.ncar(args[0], given.vision, *args[1:]))
    with pytest.raises(InvalidInput, match="layers is empty"):
        measure([])
    with pytest.raises(InvalidInput, match="on the left"):
        measure(right.layers, given.mask.flip(-1))
    with pytest.raises(InvalidInput, match="attention_mask has shape"):
        measure(right.layers, given.mask[:, 1:])
