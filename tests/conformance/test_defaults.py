"""Whatever type and device the process has as its defaults, answers are the same."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import cycle

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidInput
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.defaults import DEFAULTS, default
from tests.pairs import pairs

from .compare import GREEDY
from .policies import EVERY

POLICIES = {**EVERY, "kivi": foveate.kivi(group=8, residual=3), "turboquant": foveate.turboquant()}
HOW = {**GREEDY, "max_new_tokens": 3}


def check(model, inputs, policy, name):
    """Bit for bit; the test is skipped where the stock model itself answers otherwise."""
    with foveate.compress(model, policy):
        expected = model.generate(**inputs, **HOW)
    found = asked(model, inputs, policy, name)
    if not same(found, expected):
        unchanged = same(asked(model, inputs, None, name), model.generate(**inputs, **HOW))
        assert not unchanged, f"under {name}: {found}"
        pytest.skip(f"the stock model answers otherwise under {name}, or fails")


def asked(model, inputs, policy, name):
    """An answer under other defaults, or what reading a tensor without numbers ends in.

    A copy from one into a tensor of the CPU is no error, it copies nothing: what was in that memory
    is read, and where it is NaN, the library refuses.
    """
    block = nullcontext() if policy is None else foveate.compress(model, policy)
    try:
        with default(name), block:
            return model.generate(**inputs, **HOW)
    except (NotImplementedError, InvalidInput) as error:
        return error


def same(found, expected):
    return not isinstance(found, Exception) and (
        torch.equal(found.sequences, expected.sequences)
        and all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in zip(found.logits, expected.logits, strict=True)
        )
    )


# Each family under each of the defaults, and the policies in turns; under all of them without a
# model in tests/core/test_defaults.py.
ROWS = list(zip(pairs(zoo.FAMILIES, DEFAULTS), cycle(POLICIES)))


@pytest.mark.parametrize(("where", "policy"), ROWS, ids=[f"{x}-{'-'.join(y)}" for y, x in ROWS])
def test_answers_are_the_same_under_any_defaults(where, policy):
    family, name = where
    check(zoo.build(family), zoo.prompt(family, lengths=(23, 31)), POLICIES[policy], name)


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize(
    ("family", "policy"),
    [("llama", "mixkv"), ("llava", "ragged, quantised"), ("qwen2_vl", "kvzip")],
)
def test_so_are_those_of_a_model_in_bfloat16(family, policy, name):
    model, inputs = zoo.fresh(family).to(torch.bfloat16), zoo.prompt(family, lengths=(23, 31))
    half = {k: t.to(torch.bfloat16) if t.is_floating_point() else t for k, t in inputs.items()}
    check(model, half, POLICIES.get(policy, foveate.kvzip(budget=0.5)), name)


@pytest.mark.parametrize("name", DEFAULTS)
def test_contexts_are_read_forked_stored_and_asked_the_same(name, tmp_path):
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(23, 31))
    question = zoo.extend("llava", inputs, new_text=6, seed=1).cached
    found = []
    for defaults in (nullcontext(), default(name)):
        with defaults, foveate.compress(model, POLICIES["ragged, quantised"]) as session:
            context = session.prefill(**inputs)
            path = session.save(tmp_path / f"{len(found)}.safetensors", cache=context)
            for cache in (session.fork(context), session.load(path)):
                answer = model.generate(**question, **{CACHE: cache}, **HOW)
                found.append((session.held_share(), session.stats.kept, answer))
    for one, other in zip(found[:2], found[2:], strict=True):
        assert same(other[2], one[2])
        assert torch.equal(one[0], other[0])
        assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize("method", ["prefixkv:budget=50%", "expected_attention", "recommended"])
def test_profiles_are_the_same_under_any_defaults(method):
    model, prompts = zoo.build("llama"), [zoo.prompt("llama", seed=1)]
    expected = foveate.calibrate(model, method, prompts)
    for name in DEFAULTS:
        with default(name):
            found = foveate.calibrate(model, method, prompts)
        assert_close(found.by_layer, expected.by_layer, rtol=0, atol=0)
