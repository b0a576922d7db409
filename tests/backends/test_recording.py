"""A prompt that is read once gives every policy what it would have had of its own prefill."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.backends.hf import branch, record
from foveate.backends.hf.internals import CACHE, last_logits
from foveate.errors import InvalidInput
from tests import zoo
from tests.conformance.compare import GREEDY, TOLERANCE
from tests.conformance.policies import EVERY, of_method
from tests.pairs import by_turns

POLICIES = {
    **EVERY,
    "full": foveate.full(),
    "kivi": foveate.kivi(bits=4, residual=8),
    "all fits": of_method("snapkv", 500),
}
STEPS = GREEDY["max_new_tokens"]


def columns(cache):
    return [layer.pairs.columns.tolist() for layer in cache.layers if hasattr(layer, "pairs")]


@torch.no_grad()
def of_its_own(model, policy, inputs, sums):
    """What is kept after a prefill of its own, the tokens of a greedy answer, their logits."""
    with foveate.compress(model, policy) as session:
        cache = session.prefill(**inputs)
        kept = columns(cache)
        out = model.generate(**inputs, **GREEDY)
    return kept, out.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(out.logits)


@torch.no_grad()
def branched(model, policy, recording):
    """The same from a recording, token by token."""
    logits = [recording.logits]
    with foveate.compress(model, policy) as session:
        cache = branch(session, recording)
        kept, stats = columns(cache), session.stats
        for _ in range(STEPS - 1):
            token = logits[-1].argmax(-1, keepdim=True)
            logits.append(model(input_ids=token, **{CACHE: cache}).logits[:, -1])
    return kept, stats, torch.stack(logits)


@by_turns(name=POLICIES.keys(), family=[f for f in zoo.FAMILIES if f != "mllama"])
def test_a_branch_keeps_and_answers_what_a_prefill_of_its_own_does(family, name, recordings):
    model, inputs, recording = recordings(family)
    if limit := zoo.step_limit(family):
        pytest.skip(limit)
    kept, tokens, logits = of_its_own(model, POLICIES[name], inputs, recording)
    found, stats, ours = branched(model, POLICIES[name], recording)
    assert found == kept
    assert torch.equal(ours.argmax(-1).T, tokens)
    assert float((ours - logits).abs().max()) <= TOLERANCE
    assert stats.seen == inputs["input_ids"].shape[1]
    assert stats.bytes_after > 0


@pytest.fixture(scope="module")
def recordings():
    """Of one prompt of each family, made once: what all branches come from."""
    made = {}

    def of(family):
        if family not in made:
            model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
            made[family] = (model, inputs, record(model, **inputs))
        return made[family]

    return of


def test_branches_leave_the_recording_and_each_other_alone(recordings):
    model, _, recording = recordings("llava")
    names = ["full", "lookm", "h2o", "adakv", "ragged, quantised", "prefixkv", "full"]
    first = {name: branched(model, POLICIES[name], recording) for name in names}
    for name in reversed(names):
        kept, _, logits = branched(model, POLICIES[name], recording)
        assert kept == first[name][0]
        assert torch.equal(logits, first[name][2])


def test_a_padded_batch_branches_too():
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(23, 40))
    recording = record(model, **inputs)
    for name in ("snapkv", "mixkv", "lookm", "ragged"):
        with foveate.compress(model, POLICIES[name]) as session:
            expected = columns(session.prefill(**inputs))
            assert columns(branch(session, recording)) == expected


def test_a_forked_branch_is_saved_read_and_asked_as_any_cache(recordings, tmp_path):
    model, inputs, recording = recordings("llava")
    question = zoo.extend("llava", inputs, new_text=5).cached
    with foveate.compress(model, POLICIES["snapkv"]) as session:
        cache = branch(session, recording)
        session.save(tmp_path / "context.safetensors")
        again = session.load(tmp_path / "context.safetensors")
        answers = [
            model.generate(**question, **{CACHE: c}, **GREEDY).sequences
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
    assert torch.allclose(found.logits, model(**inputs).logits[:, -1], atol=1e-5)
    assert last_logits(model, {"logits_to_keep": 3}) == last_logits(torch.nn.Identity(), {}) == {}
