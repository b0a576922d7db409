"""A budget below what a policy always keeps is raised to that, row by row, and said once."""

import logging

import pytest
import torch

import foveate
from foveate.compression import budgeting
from foveate.errors import InvalidBudget, InvalidParameter
from foveate.policies.amount import Amount
from foveate.policies.parameters import check
from foveate.stages.recent import recent_tokens
from tests.profiles import saved, saved_tensors, tensors_of

from .prompts import compressed, prompt

HEADS, DEPTH = 2, 3
READS_AGAIN = {"kvzip", "streammem"}  # of a model: tests/conformance/test_short_prompts.py
KEEPS_ALL = {"full", "kivi", "turboquant"}
NAMES = sorted(set(foveate.METHODS) - READS_AGAIN - KEEPS_ALL)
CHANGES = {"": {}, "text": {"protect_text": True}, "half": {"recent": 0.5, "sinks": 9}}


def takes(name, change):
    """Whether a method has these parameters, and they may be that."""
    hints = foveate.METHODS[name].hints
    try:
        check(hints, CHANGES[change])
    except InvalidParameter:
        return False
    return CHANGES[change].keys() <= hints.keys()


CASES = [(name, change) for name in NAMES for change in CHANGES if takes(name, change)]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """A profile for every method that needs one."""
    folder = tmp_path_factory.mktemp("profiles")
    scores = [[0.9, 0.1], [0.4, 0.6], [0.5, 0.2]]
    made = {name: saved(folder, name, scores) for name in ("duo_attention", "headkv", "sparsemm")}
    for name in ("fast_kvzip", "kvzap", "q_filters", "triattention"):
        made[name] = saved_tensors(folder, name, [tensors_of(name, HEADS, 4)] * DEPTH)
    return made


def always(policy, length, text, tokens):
    """How many tokens of a prompt are kept whatever their scores, at a budget; counted out."""
    select, kept = policy.select, set()
    recent = int(recent_tokens(select.recent, torch.tensor([tokens])))
    kept |= set(range(min(length, getattr(select, "sinks", 0))))
    kept |= set(range(max(0, length - recent), length))
    return len(kept | (set(text) if getattr(select, "protect_text", False) else set()))


def held(policy, length, text, asked):
    """The smallest budget from what is asked for on that holds what is always kept at it."""
    fits = (t for t in range(asked, 10**4) if always(policy, length, text, t) <= t)
    return min(length, next(fits))


def boundaries(policy):
    """Lengths around what is always kept, and around the shortest whose fifth holds that."""
    least = max(1, policy.select.protects)
    return sorted({max(1, n + more) for n in (least, 5 * least) for more in (-1, 0, 1)})


@pytest.mark.parametrize(("name", "change"), CASES)
def test_at_every_boundary_a_row_keeps_what_is_asked_or_what_is_always_kept(name, change, profiles):
    given = {"budget": "20%", **CHANGES[change]}
    given |= {"profile": str(profiles[name])} if name in profiles else {}
    policy = foveate.METHODS[name](**given)
    lengths = boundaries(policy)
    batch = prompt(lengths, h=HEADS, d=4, depth=DEPTH)
    rows = [range(pad, batch.columns) for pad in batch.pads]
    text = [
        [at - row.start for at in row if not batch.vision[place, at]]
        for place, row in enumerate(rows)
    ]
    asked = Amount.of("20%").tokens(torch.tensor(lengths), 0).tolist()
    expected = [held(policy, *each) for each in zip(lengths, text, asked, strict=True)]
    assert policy.select.protects in (0, *expected) or change == "text"
    counts = torch.stack([kept.counts.sum(-1) for kept in compressed(policy, batch)]).sum(0)
    assert counts.tolist() == [tokens * HEADS * DEPTH for tokens in expected]
    for row, (length, tokens) in enumerate(zip(lengths, expected, strict=True)):
        alone = batch.alone(row)
        kept = sum(int(one.counts.sum()) for one in compressed(policy, alone))
        assert kept == tokens * HEADS * DEPTH
        if asked[row] < tokens < length:
            with pytest.raises(InvalidBudget, match="always kept"):
                compressed(policy, alone, strict=True)
        elif tokens < length:
            compressed(policy, alone, strict=True)


@pytest.mark.parametrize("budget", [1, 3, 31, "1%", "1B"])
def test_a_number_of_tokens_or_bytes_is_raised_as_a_share_is(budget):
    batch = prompt([31, 33, 90], h=HEADS, d=4, depth=DEPTH)
    for kept in compressed(foveate.snapkv(budget=budget), batch):
        assert kept.counts.tolist() == [[31, 31], [32, 32], [32, 32]]
    with pytest.raises(InvalidBudget):
        compressed(foveate.snapkv(budget=budget), batch, strict=True)


@pytest.mark.parametrize("budget", [0, -1, "0%", "120%", "0B", 0.0])
def test_what_is_no_budget_is_refused_as_before(budget):
    with pytest.raises(InvalidBudget):
        foveate.snapkv(budget=budget)


def test_the_log_names_the_first_row_once_of_each_policy(caplog, monkeypatch):
    monkeypatch.setattr(budgeting, "_warned", set())
    batch = prompt([40, 50], h=HEADS, d=4, depth=DEPTH)
    with caplog.at_level(logging.WARNING, "foveate"):
        for _ in range(2):
            compressed(foveate.snapkv(budget="20%"), batch)
    (said,) = caplog.messages
    assert "snapkv:budget=20% asks for 8 of the 40 tokens of row 0" in said
    assert "always keeps 32 of them" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "foveate"):
        compressed(foveate.snapkv(budget="80%"), batch)
        compressed(foveate.snapkv(budget="auto(0.9)"), batch)
    assert not caplog.messages
