"""What the tests compare by: answers up to where they are certain, kept sets up to ties, noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import foveate
from foveate.compression.pipeline import keep
from tests import jitter, zoo
from tests.answers import DRAWN, LEAD, certain, same_answer
from tests.ties import Choice, choices, holds_best, same_kept, ties

FREE = {"output_logits": True, "return_dict_in_generate": True, "do_sample": False}


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers as under FOVEATE_JITTER=1e-6."""
    monkeypatch.setattr(jitter, "SHARE", 1e-6)
    monkeypatch.setattr(torch.nn.functional, "linear", jitter.linear)


def logits(family: str = "llama") -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = zoo.build(family)(**zoo.prompt(family)).logits
    return found


@pytest.mark.usefixtures("noisy")
def test_noise_is_the_same_for_the_same_bits_and_another_on_the_other_side() -> None:
    ours = logits()
    with jitter.other_side():
        theirs = logits()
        assert torch.equal(logits(), theirs)
    assert torch.equal(logits(), ours)
    assert 1e-6 < float((ours - theirs).abs().max()) < 100e-6  # as `jitter.WIDER` says
    values = torch.randn(100_000)
    for seed in (1, 2):
        drawn = jitter.noise(values, seed)
        assert float(drawn.abs().max()) <= 1
        assert abs(float(drawn.mean())) < 0.01
        assert float(drawn.std()) == pytest.approx(3**-0.5, abs=0.01)
    assert abs(float((jitter.noise(values, 1) * drawn).mean())) < 0.01


def test_an_answer_is_certain_until_two_tokens_are_as_likely() -> None:
    rows = torch.tensor([[0.0, 1, 2], [3, 1, 2], [2, 2 + LEAD / 2, 1], [5, 0, 0]])
    assert certain(rows) == 2
    assert certain(rows[:2]) == 2
    same_answer([2, 0, 0, 1], [2, 0, 1, 0], rows)
    with pytest.raises(AssertionError):
        same_answer([2, 1, 0, 1], [2, 0, 1, 0], rows)
    with pytest.raises(AssertionError):
        same_answer([2, 0, 0], [2, 0, 1, 0], rows)


def test_drawn_tokens_are_the_same_whatever_the_model_says() -> None:
    prompt = zoo.prompt("llama", lengths=(23, 40))
    said: list[Any] = [
        zoo.build(family).generate(**prompt, max_new_tokens=6, logits_processor=DRAWN, **FREE)
        for family in ("llama", "qwen2")
    ]
    assert torch.equal(said[0].sequences, said[1].sequences)
    assert int(said[0].sequences[:, 40:].min()) >= zoo.TEXT_FROM
    assert not torch.equal(said[0].logits[0], said[1].logits[0])


def chosen(spec: str) -> list[Choice]:
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(31, 40))
    with foveate.compress(model, spec) as session, choices() as found:
        session.prefill(**inputs)
    return found


def swapped(one: Choice, gap: float) -> tuple[Choice, Choice]:
    """The choice with its border two scores that far apart in row 0, and with these two swapped."""
    (scored,), (kept,) = one.scored, one.kept
    values, mask = scored.scores.values.clone(), kept.mask.clone()
    row = values[0, 0]
    last = row.masked_fill(~mask[0, 0], torch.inf).argmin()
    next_ = row.masked_fill(mask[0, 0], -torch.inf).argmax()
    row[next_] = row[last] - gap * row[last].abs()
    mask[0, 0, last], mask[0, 0, next_] = False, True
    scored = replace(scored, raw=values, scores=scored.scores._replace(values=values))
    return one._replace(scored=[scored]), one._replace(
        scored=[scored], kept=[replace(kept, mask=mask)]
    )


@pytest.mark.parametrize("spec", ["knorm:budget=50%", "vnorm:budget=50%"])
def test_a_tie_that_falls_otherwise_takes_its_row_out_and_no_more(spec: str) -> None:
    first = chosen(spec)[0]
    assert same_kept([first], [first]).tolist() == [True, True]
    near, other = swapped(first, 1e-6)
    assert int(ties(near)[0].sum()) >= 2
    assert same_kept([near], [other]).tolist() == [False, True]
    far, other = swapped(first, 0.01)
    with pytest.raises(AssertionError, match="layer 0 keeps other pairs"):
        same_kept([far], [other])


def test_the_best_are_held_but_for_ties() -> None:
    scores = torch.tensor([3.0, 2, 2 + 1e-6, 1])
    assert holds_best(torch.tensor([True, True, False, False]), scores, 2)
    assert not holds_best(torch.tensor([True, False, False, True]), scores, 2)
    assert not holds_best(torch.tensor([True, True, True, False]), scores, 2)


def test_of_many_equal_pairs_each_may_be_the_one_that_leaves() -> None:
    """As keys of one token in the first layer, whose norms differ in the last bit."""
    one = chosen("knorm:budget=50%")[0]
    (scored,), (kept,) = one.scored, one.kept
    values, count = scored.scores.values.clone(), int(kept.mask[0, 0].sum())
    equal = values[0, 0].topk(count + 1).indices[1:]  # all that stay but one, and one more
    values[0, 0, equal] = float(values[0, 0, equal[-1]])
    values[0, 0, equal[0]] += 2e-7  # behind which noise takes others
    scored = replace(scored, raw=values, scores=scored.scores._replace(values=values))
    one = one._replace(scored=[scored], kept=keep(one.policy, [scored], one.within))
    assert bool(ties(one)[0][0, 0, equal].all())
