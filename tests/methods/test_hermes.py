"""HERMES: against the authors' output; its pseudo questions against the model's own attention."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import foveate
from foveate.cache.layer import Scored, Scores
from foveate.compression.tensors import layers_of
from foveate.errors import InvalidInput, InvalidParameter
from foveate.methods.hermes import KINDS, MemoryHierarchy, PseudoQuestions
from foveate.stages.score import KeyNorm
from tests import zoo
from tests.backends.test_follow_up import Words, eager
from tests.golden.vectors import load
from tests.jitter import other_side
from tests.ties import choices


@dataclass(frozen=True)
class Told:
    """What questions pay, layer by layer."""

    paid: dict

    def queries(self, tokens):
        return 0

    def __call__(self, layer):
        parts = {kind: self.paid[kind][layer.ordinal][None] for kind in KINDS}
        return Scores(parts["both"], parts=parts)


def layers(depth, heads, n, text):
    generator = torch.Generator().manual_seed(1)
    qkv = [torch.randn(1, heads, n, 4, generator=generator)] * 3
    return layers_of([tuple(qkv)] * depth, vision=torch.arange(n)[None] >= text)


def test_layers_keep_what_the_authors_code_keeps():
    golden, given = load("hermes")
    depth, text = given["layers"], given["visual_start_idx"]
    score = MemoryHierarchy(of=Told(golden))
    scored = []
    for layer in layers(depth, given["heads"], given["tokens"], text):
        scores = score(layer)
        scored.append(Scored(layer, scores, scores.values, torch.tensor([0])))
    kept = []
    for values, theirs in zip(score.together(scored), golden["kept"], strict=True):
        assert torch.equal(values, values[:, :1].expand_as(values))  # one ranking for the layer
        best = values[0, 0].topk(int(theirs.sum())).indices
        kept.append(torch.zeros_like(theirs).scatter(0, best, True))
    assert torch.equal(torch.stack(kept), golden["kept"])
    alone = MemoryHierarchy(of=Told(golden), smoothing=False).together(scored)
    assert not all(torch.equal(a, b) for a, b in zip(alone, score.together(scored), strict=True))


@pytest.mark.parametrize("lengths", [(40,), (23, 40)], ids=["alone", "left-padded"])
def test_pseudo_questions_pay_what_the_model_pays_after_its_prompt(lengths):
    inputs = zoo.prompt("llama", lengths=lengths)
    score = MemoryHierarchy(of=PseudoQuestions(local="ab", overall="cdefg"), shallow=0.4)
    policy = foveate.knorm(budget=0.5).but(score=score)
    model = eager("llama")
    with foveate.compress(model, policy, tokenizer=Words()), choices() as made, torch.no_grad():
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
    (choice,) = made
    for kind, text in zip(KINDS, ("ab", "cdefg", "ab; cdefg"), strict=True):
        words = torch.tensor(Words()(text, add_special_tokens=False)["input_ids"])
        for row, mask in enumerate(inputs["attention_mask"].bool()):
            ids = torch.cat([inputs["input_ids"][row, mask], words])[None]
            with torch.no_grad(), other_side():
                paid = model(input_ids=ids, output_attentions=True).attentions
            for one, theirs in zip(choice.scored, paid, strict=True):
                n, ours = int(mask.sum()), one.scores.parts[kind][row]
                asked = theirs[0, :, n:, :n].reshape(len(ours), -1, n).mean(1)
                torch.testing.assert_close(ours[:, -n:], asked, atol=1e-5, rtol=1e-4)


def test_what_it_needs_is_said():
    model = zoo.build("llama")
    with pytest.raises(InvalidInput, match="tokenizer="):
        foveate.compress(model, "hermes:budget=20,proxy=questions")
    with pytest.raises(InvalidParameter, match="compresses as tokens arrive"):
        foveate.hermes(budget=20, proxy="questions").but(when="over_budget")
    assert foveate.policy("knorm:budget=20").but(score=MemoryHierarchy(of=KeyNorm())).scope == (
        "model"
    )
