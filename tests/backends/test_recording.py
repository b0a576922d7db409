"""A prompt that is read once gives every policy what it would have had of its own prefill."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

import foveate
from foveate.errors import InvalidInput
from foveate.hf import branch, record
from foveate.hf.layer import support
from foveate.hf.model.internals import CACHE, last_logits
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE
from tests.conformance.policies import EVERY, of_method
from tests.jitter import other_side
from tests.pairs import by_turns
from tests.ties import Choice, choices, same_kept

POLICIES = {
    **EVERY,
    "full": foveate.full(),
    "kivi": foveate.kivi(bits=4, residual=8),
    "all fits": of_method("snapkv", 500),
}


class Branched(NamedTuple):
    kept: list[Choice]
    columns: list[list[list[int]]]
    stats: Any
    logits: torch.Tensor


def columns(cache):
    return [layer.pairs.columns.tolist() for layer in cache.layers if hasattr(layer, "pairs")]


@torch.no_grad()
def of_its_own(model, policy, inputs):
    """What is kept after a prefill of its own, the tokens of a greedy answer, their logits.

    No pair goes before the choice (tests/backends/test_shedding.py), as none of a recording does:
    masks are compared slot by slot.
    """
    with foveate.compress(model, policy) as session:
        with choices() as kept, mock.patch.object(support, "most_kv_heads", return_value=None):
            session.prefill(**inputs)
        out = model.generate(**inputs, **GREEDY)
    return kept, out.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(out.logits)


@torch.no_grad()
def branched(model, policy, recording, tokens):
    """The same from a recording, given the answer's tokens one by one."""
    logits = [recording.logits]
    with foveate.compress(model, policy) as session:
        with choices() as kept:
            cache = branch(session, recording)
        held, stats = columns(cache), session.stats
        for token in tokens[:, :-1].split(1, dim=1):
            logits.append(model(input_ids=token, **{CACHE: cache}).logits[:, -1])
    return Branched(kept, held, stats, torch.stack(logits))


@by_turns(name=POLICIES.keys(), family=[f for f in zoo.FAMILIES if f != "mllama"])
def test_a_branch_keeps_and_answers_what_a_prefill_of_its_own_does(family, name, recordings):
    model, inputs, recording = recordings(family)
    if limit := zoo.step_limit(family):
        pytest.skip(limit)
    kept, tokens, logits = of_its_own(model, POLICIES[name], inputs)
    found = branched(model, POLICIES[name], recording, tokens)
    if same_kept(found.kept, kept).all():
        assert float((found.logits - logits).abs().max()) <= TOLERANCE
    assert found.stats.seen == inputs["input_ids"].shape[1]
    assert found.stats.bytes_after > 0


@pytest.fixture(scope="module")
def recordings():
    """Of one prompt of each family, made once: what all branches come from."""
    made = {}

    def of(family):
        if family not in made:
            model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
            with other_side():
                made[family] = (model, inputs, record(model, hidden=True, **inputs))
        return made[family]

    return of


def test_branches_leave_the_recording_and_each_other_alone(recordings):
    model, _, recording = recordings("llava")
    names = ["full", "lookm", "h2o", "adakv", "ragged, quantised", "prefixkv", "full"]
    tokens = torch.tensor([[31, 47, 25, 90, 64]])
    first = {name: branched(model, POLICIES[name], recording, tokens) for name in names}
    for name in reversed(names):
        again = branched(model, POLICIES[name], recording, tokens)
        assert again.columns == first[name].columns
        assert torch.equal(again.logits, first[name].logits)


def test_a_padded_batch_branches_too():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(23, 40))
    with other_side():
        recording = record(model, **inputs)
    for name in ("snapkv", "mixkv", "lookm", "ragged"):
        with foveate.compress(model, POLICIES[name]) as session:
            with choices() as expected:
                session.prefill(**inputs)
            with choices() as kept:
                branch(session, recording)
        same_kept(kept, expected)


def test_a_forked_branch_is_saved_read_and_asked_as_any_cache(recordings, tmp_path):
    model, inputs, recording = recordings("llava")
    question = zoo.extend("llava", inputs, new_text=5).cached
    with foveate.compress(model, POLICIES["snapkv"]) as session:
        cache = branch(session, recording)
        session.save(tmp_path / "context.safetensors")
        again = session.load(tmp_path / "context.safetensors")
        answers = [
            torch.stack(model.generate(**question, **{CACHE: c}, **GREEDY).logits)
            for c in (session.fork(cache), cache, again)
        ]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_another_models_recording_is_refused(recordings):
    _, _, recording = recordings("llava")
    other = zoo.fresh("llava")
    with (
        foveate.compress(other, "snapkv:budget=20,window=4") as session,
        pytest.raises(InvalidInput, match="recorded with another Llava"),
    ):
        branch(session, recording)


def test_the_model_is_free_again_after_a_recording_that_failed():
    model = zoo.build("llava")
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        record(model, input_ids=torch.empty(1, 0, dtype=torch.long))
    with foveate.compress(model, "full"):
        pass


def test_logits_are_made_of_the_last_token_alone_where_a_model_can():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    sizes = []
    hook = model.lm_head.register_forward_hook(lambda _, __, out: sizes.append(out.shape[1]))
    found = record(model, **inputs)
    hook.remove()
    assert sizes == [1]
    with other_side():
        expected = model(**inputs).logits[:, -1]
    assert torch.allclose(found.logits, expected, atol=TOLERANCE)
    assert last_logits(model, {"logits_to_keep": 3}) == last_logits(torch.nn.Identity(), {}) == {}
