"""Compressed caches, and what else a process hands to another, pickle."""

import copy
import io
import pickle

import pytest
import torch

import foveate
from foveate.errors import UnsupportedCache
from foveate.hf.model.internals import CACHE
from foveate.policies.method import METHODS
from tests import zoo
from tests.conformance.policies import EVERY, RANDOM

LENGTHS = (60, 50)


def answers(model, inputs, cache):
    """The logits of three tokens that are told, after what the cache has seen."""
    tokens = torch.tensor([[50, 61, 72], [53, 64, 75]])
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 3), value=1)
    seen = mask.shape[1] - 3
    found = []
    with torch.no_grad():
        for step in range(3):
            given = {"input_ids": tokens[:, step : step + 1], CACHE: cache}
            given["attention_mask"] = mask[:, : seen + step + 1]
            found.append(model(**given).logits[:, -1])
    return torch.stack(found)


def torch_copy(cache):
    """As checkpoints are written."""
    torch.save(cache, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_pickled_cache_answers_as_it_would_have(name):
    """`pickle`, `copy.deepcopy`, `torch.save` of a compressed cache | work | it goes on in a block
    under the same policy, also of another process
    """
    model, inputs, policy = zoo.build("llava"), zoo.prompt("llava", lengths=LENGTHS), EVERY[name]
    with foveate.compress(model, policy) as session:
        cache = session.prefill(**inputs)
        packed = pickle.dumps(cache)
        # both copies pickle: one policy for every kind of storage is enough
        copies = [copy.deepcopy(cache), torch_copy(cache)] if name in RANDOM else []
        found = [answers(model, inputs, each) for each in (pickle.loads(packed), *copies)]
        expected = answers(model, inputs, cache)
    with foveate.compress(model, policy):
        found.append(answers(model, inputs, pickle.loads(packed)))
    assert all(torch.equal(each, expected) for each in found)


def test_a_pickled_cache_is_in_no_block_and_keeps_its_policy():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=LENGTHS)
    with foveate.compress(model, "snapkv:budget=70%") as session:
        again = pickle.loads(pickle.dumps(session.prefill(**inputs)))
    with pytest.raises(UnsupportedCache, match="block that was left"):
        answers(model, inputs, again)
    with (
        foveate.compress(model, "tova:budget=70%"),
        pytest.raises(UnsupportedCache, match="this block's policy is tova"),
    ):
        answers(model, inputs, again)


def test_a_fixed_cache_pickles():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=LENGTHS)
    with foveate.compress(model, "snapkv:budget=70%") as session:
        session.prefill(**inputs)
        held = session.fixed(4)
        again = pickle.loads(pickle.dumps(held))
        token = {"input_ids": torch.full((2, 1), 50)}
        with torch.no_grad():
            logits = [model(**token, **{CACHE: one}).logits for one in (held, again)]
    assert torch.equal(*logits)


def test_policies_results_and_errors_pickle():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=LENGTHS)
    with foveate.compress(model, "h2o:budget=50%") as session:
        session.prefill(**inputs)
        stats = session.stats
    assert all(map(torch.equal, pickle.loads(pickle.dumps(stats)).kept, stats.kept))
    for policy in EVERY.values():
        policy = foveate.policy(policy)
        assert pickle.loads(pickle.dumps(policy)) == policy
    for method in METHODS.values():
        assert pickle.loads(pickle.dumps(method)) is method
    kept = foveate.compress_tensors("h2o:budget=50%", [tuple(torch.randn(3, 1, 2, 40, 8))])
    assert torch.equal(pickle.loads(pickle.dumps(kept))[0].mask, kept[0].mask)
    for name in foveate.errors.__dict__.values():
        if isinstance(name, type) and issubclass(name, foveate.FoveateError):
            made = name("what", "package") if name is foveate.errors.MissingPackage else name("why")
            assert str(pickle.loads(pickle.dumps(made))) == str(made)
