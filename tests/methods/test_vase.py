"""VaSE: against the authors' output, and its lot against torch's."""

from __future__ import annotations

import torch
from torch.testing import assert_close

import foveate
from foveate.cache.layer import Scored, Scores
from foveate.methods.vase import LargeAndDrawn
from tests.golden.vectors import load
from tests.stages.layers import changed, random_layer


def test_without_a_lot_what_is_kept_is_what_the_authors_code_keeps():
    golden, arguments = load("vase_range_attn")
    window, n = arguments["residual_length"], golden["k"].shape[2]
    policy = foveate.vase(
        budget=arguments["token_budget"],
        window=window,
        large=arguments["n_large"],
        kernel=arguments["kernel"],
        sinks=0,
        sampled=False,
    )
    q = torch.zeros(*golden["q"].shape[:2], n, golden["q"].shape[3])
    q[:, :, -window:] = golden["q"]
    (kept,) = foveate.compress_tensors(policy, [(q, golden["k"], golden["v"])])
    assert torch.equal(kept.mask, golden["kept"].bool())


def scored(values, spread, tokens=6):
    """One row and head of slots that nothing protects, under a budget of ``tokens``."""
    values, spread = (torch.tensor(x)[None, None] for x in (values, spread))
    v = torch.stack([spread, torch.zeros_like(spread)], dim=-1)
    layer = changed(random_layer([values.shape[2]], h=1), v=v, tokens=torch.tensor([tokens]))
    return Scored(layer, Scores(values), values, layer.slots.tokens)


def test_what_is_drawn_is_drawn_as_often_as_torch_draws_it():
    """Two of five beside the widest value, with probabilities in proportion to the attention."""
    attention, spread = [0.3, 0.1, 0.05, 0.35, 0.15, 0.05], [0.0, 0.0, 9.0, 0.0, 0.0, 0.0]
    one, draws = scored(attention, spread, tokens=3), 3000
    counts = torch.tensor([[3]])
    taken = sum(
        LargeAndDrawn(recent=0, sinks=0, large=1, seed=seed)(one, counts)[0, 0].long()
        for seed in range(draws)
    )
    weights = torch.tensor(attention).where(torch.arange(6) != 2, 0.0)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial(weights.expand(draws, 6), 2, generator=generator)
    expected = drawn.flatten().bincount(minlength=6)
    expected[2] = draws
    assert_close(taken / draws, expected / draws, atol=0.04, rtol=0)  # four standard deviations


def test_a_lot_is_another_one_once_more_tokens_have_come():
    values = torch.full((40,), 0.025).tolist()
    kept = []
    for seen in (40, 41):
        one = scored(values, values)
        slots = {"q_pos": torch.full_like(one.layer.q_pos[:, -1:], seen - 1)}
        one = Scored(changed(one.layer, **slots), one.scores, one.raw, one.tokens)
        kept.append(LargeAndDrawn(recent=0, sinks=0, large=0)(one, torch.tensor([[9]])))
    assert not torch.equal(*kept)
