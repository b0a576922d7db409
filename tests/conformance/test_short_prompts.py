"""Prompts of any length are answered under any method: budgets are raised, and it is said."""

import random

import pytest
import torch

import foveate
from foveate.policies.amount import Amount
from foveate.stages.recent import recent_tokens
from tests import zoo
from tests.backends.test_follow_up import Chat
from tests.pairs import failures

from .policies import CALIBRATED

MODELS = ("llama", "llava")
BUDGETS = ("1%", "20%", "50%", 1, 7, 40, "auto(0.5)", "3000B", "40000B")
CHANGES = ({}, {"window": 4}, {"sinks": 11}, {"recent": 0.7}, {"recent": 9}, {"protect_text": True})
NAMES = sorted(set(foveate.METHODS) - set(CALIBRATED))
QUICK, ALL = 40, 500


def drawn(number):
    """A case: a model, a policy and the lengths of a batch's rows."""
    draw = random.Random(number)
    while True:
        name = NAMES[number % len(NAMES)] if draw.random() < 0.9 else draw.choice(NAMES)
        given = {"budget": draw.choice(BUDGETS), **draw.choice(CHANGES)}
        given = {k: v for k, v in given.items() if k in foveate.METHODS[name].parameters}
        family = draw.choice(MODELS)
        lengths = tuple(
            draw.choice((9, 12, 31, 32, 33, 47, 80)) for _ in range(draw.choice((1, 3)))
        )
        if family == "llava":
            lengths = tuple(max(n, 31) for n in lengths)
        when = draw.choice((None, None, "over_budget"))
        try:
            policy = foveate.METHODS[name](**given)
            if when and not policy.when.decodes and not policy.when.reads:
                policy = policy.but(when=when)
        except foveate.errors.FoveateError:  # that is no policy: its parameters are other ones
            continue
        return family, policy, lengths


def expected(policy, inputs, asked):
    """What each row is to keep per KV head: what was asked for, or what is always kept."""
    found, select = [], policy.select
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    image = ids == getattr(zoo.build("llava").config, "image_token_id", -1)
    for row, tokens in enumerate(asked.tolist()):
        visual = image[row][mask[row]].tolist()
        n, tokens = len(visual), max(1, tokens)
        while True:
            recent = int(recent_tokens(select.recent, torch.tensor([tokens])))
            ends = getattr(select, "sinks", 0), n - recent
            text = getattr(select, "protect_text", False)
            kept = [i < ends[0] or i >= ends[1] or (text and not visual[i]) for i in range(n)]
            if sum(kept) <= tokens:
                break
            tokens += 1
        found.append(min(n, tokens))
    return found


@pytest.mark.parametrize("number", range(QUICK))
def test_no_prompt_is_refused_and_what_is_kept_is_what_statistics_say(number):
    family, policy, lengths = drawn(number)
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=lengths)
    with foveate.compress(model, policy, tokenizer=Chat()) as session:
        model.generate(**inputs, max_new_tokens=3, do_sample=False, eos_token_id=None)
        stats = session.stats
    assert stats.seen == max(lengths)
    pairs = sum(kept.sum(-1) for kept in stats.kept)
    heads = sum(kept.shape[1] for kept in stats.kept)
    assert torch.equal(stats.held, pairs.double() / heads)
    if policy.amount.kind == "auto":
        assert stats.asked is None
        assert not bool(stats.raised.any())
        return
    wanted = expected(policy, inputs, stats.asked)
    if policy.amount.kind in ("fraction", "tokens"):
        assert torch.equal(stats.asked, Amount.of(policy.amount).tokens(torch.tensor(lengths), 0))
        assert stats.held.tolist() == wanted
    else:  # what only scores tell may take a little off
        least = expected(policy, inputs, torch.ones_like(stats.asked))
        allowed = int(policy.amount.value)
        assert stats.bytes_after <= allowed or stats.held.tolist() == least
        assert all(a <= b for a, b in zip(stats.held.tolist(), wanted, strict=True))
    assert stats.raised.tolist() == [
        held > asked for held, asked in zip(stats.held.tolist(), stats.asked.tolist(), strict=True)
    ]


@pytest.mark.slow
def test_nor_are_hundreds_of_others():
    check = test_no_prompt_is_refused_and_what_is_kept_is_what_statistics_say
    assert failures(check, ((number,) for number in range(QUICK, ALL))) == {}
