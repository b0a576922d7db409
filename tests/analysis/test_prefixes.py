"""What the search finds is what the policy keeps, and what it takes is what the literal takes."""

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget
from foveate_lab import analysis
from tests.literal import prefixkv as literal
from tests.methods.extended import curve_as_kept
from tests.methods.visual import visual


@pytest.fixture(scope="module")
def given():
    """Layers of which each later one attends more to every seventh token."""
    made = visual([60, 47], depth=5, d=16, seed=1)
    for layer, (q, k, _) in enumerate(made.layers):
        q[..., 0] = 3
        k[..., 5::7, 0] = 2 * layer
    return made


def found_literally(given, row, tokens, tolerance):
    """The literal's p, the steps that it took, and the tokens of its layers."""
    length = given.lengths[row]
    importances = [literal.importance(*given.alone(layer, row)[:2]) for layer in range(5)]
    curves = [curve_as_kept(one[None], [0, length - 1]) for one in importances]
    p, counts = literal.search(curves, 5 * tokens, tolerance)
    steps = next(n for n in range(1, 65) if literal.search(curves, 5 * tokens, 0, n)[0] == p)
    return p, steps, counts


@pytest.mark.parametrize("delta", [0.0, 0.0125, 0.05, 0.1, 1.0])
def test_every_row_is_searched_as_far_as_the_tolerance_asks(given, delta):
    found = analysis.prefix_search(given.layers, "50%", given.mask, delta=delta)
    kept = given.keeps(foveate.prefixkv(budget="50%", delta=delta))
    assert found.tokens.tolist() == torch.stack([one.counts[:, 0] for one in kept], 1).tolist()
    for row, length in enumerate(given.lengths):
        p, steps, counts = found_literally(given, row, length // 2, delta * length)
        assert (float(found.p[row]), int(found.steps[row])) == (p, steps)
        assert abs(sum(counts) - 5 * (length // 2)) <= delta * length or steps == 64
        assert found.ratios[row].tolist() == pytest.approx(
            [kept / length for kept in found.tokens[row].tolist()]
        )


def test_a_wider_tolerance_takes_fewer_steps_and_fewer_steps_are_taken_where_they_are_capped(given):
    steps = [
        analysis.prefix_search(given.layers, "50%", given.mask, delta=delta).steps.sum()
        for delta in (0.0, 0.05, 0.2, 1.0)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]
    capped = analysis.prefix_search(given.layers, "50%", given.mask, steps=3)
    assert capped.steps.tolist() == [3, 3]


def test_a_prompt_that_fits_its_budget_is_kept_whole(given):
    found = analysis.prefix_search(given.layers, 100, given.mask)
    assert found.ratios.tolist() == [[1.0] * 5] * 2


@pytest.mark.parametrize("budget", ["64MB", "auto(0.9)"])
def test_a_budget_that_is_no_number_of_tokens_is_refused(given, budget):
    with pytest.raises(InvalidBudget, match="give a share"):
        analysis.prefix_search(given.layers, budget)
