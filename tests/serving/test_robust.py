"""No request ends the engine: it fails by itself or is served, and the others go on."""

import re

import pytest
import torch

from foveate.vllm.scheduler import scheduler
from foveate.vllm.startup import registration
from foveate.vllm.worker import attention
from tests.serving.engine import check_alike, engine, greedy, prompts, serve
from tests.serving.prometheus import labelled, of_this_process
from tests.serving.test_requests import check

POLICY = "snapkv:budget=25%,window=8"
LENGTHS = (300, 135, 97)
POISON = 2  # a token that no drawn prompt has


def reasons(llm, given, tokens=6, asked=None):
    """How each request ended, and what it answered."""
    for name, prompt in enumerate(given):
        extra = asked[name] if asked else None
        llm.llm_engine.add_request(str(name), {"prompt_token_ids": prompt}, greedy(tokens, extra))
    return ended(llm)


def ended(llm):
    found = {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                (one,) = output.outputs
                found[output.request_id] = one.finish_reason, list(one.token_ids)
    return found


def idle(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 64}])
def test_a_prompt_that_cannot_be_compressed_fails_alone(llama, model, monkeypatch, options):
    plain = attention.after_pass

    def failing(prompts, cells, *more):
        if cells[0].prompt.length == 135:
            raise torch.OutOfMemoryError("no memory left for its scores")
        return plain(prompts, cells, *more)

    with engine(llama, POLICY, **options) as llm:
        served = serve(llm, prompts(LENGTHS), 6)
        monkeypatch.setattr(attention, "after_pass", failing)
        found = reasons(llm, prompts(LENGTHS))
        assert [found[name][0] for name in "012"] == ["length", "error", "length"]
        check_alike([found[name][1] for name in "02"], served._replace(answers=served.answers[::2]))
        monkeypatch.undo()
        after = serve(llm, prompts(LENGTHS), 6)
        assert idle(llm).get_num_free_blocks() == 63
    check(model, after, [POLICY] * 3)


@pytest.fixture(scope="module")
def poisoned(llama, model, tmp_path_factory):
    """The same Llama, whose states are no numbers once it has read one of its tokens."""
    folder = tmp_path_factory.mktemp("poisoned")
    weights = model.state_dict()
    rows = weights["model.embed_tokens.weight"].clone()
    rows[POISON] = torch.nan
    model.save_pretrained(folder, state_dict=weights | {"model.embed_tokens.weight": rows})
    return str(folder)


@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        "h2o:budget=25%",
        pytest.param("mixkv:budget=25%,window=8", marks=pytest.mark.slow),
    ],
)
def test_scores_that_are_no_numbers_harm_no_other_request(poisoned, model, policy):
    sick = [[*prompts([200])[0][:150], POISON, *prompts([60])[0]]]
    with engine(poisoned, policy, max_num_batched_tokens=256) as llm:
        together = reasons(llm, prompts(LENGTHS) + sick)
        assert together["3"][0] == "error"
        for _ in range(4):  # every block of the pool has held what is no number
            reasons(llm, sick * 5)
        after = serve(llm, prompts(LENGTHS), 6)
        assert idle(llm).get_num_free_blocks() == 63
    check(model, after, [policy] * 3)
    check_alike([together[name][1] for name in "012"], after)


def no_memory(*_):
    raise torch.OutOfMemoryError("no memory left for its scores")


BOUNDED = "snapkv:budget=128,window=8,when=over_budget(every=64,reading=true)"

FAILURES = {  # what goes wrong, under which policy, and the sentence
    "compression": (
        lambda patch: patch.setattr(attention, "after_pass", no_memory),
        POLICY,
        r"its prompt cannot be compressed: OutOfMemoryError\('no memory left for its scores'\)",
    ),
    "order": (
        lambda patch: patch.setattr(scheduler.Planning, "_order", lambda *_: None),
        BOUNDED,
        "the scheduler has sent no order, .* please report this",
    ),
    "pool": (
        lambda patch: patch.setattr(registration, "check_fits", lambda *_: None),
        "full",
        "its prompt of 800 tokens needs 26 blocks at once, and the pool has 19",
    ),
    "request": (
        lambda patch: patch.setattr(registration, "check_request", lambda *_: None),
        "h2o",
        "foveate_policy='h2o' is not served here",
    ),
}


@pytest.mark.parametrize("reason", FAILURES)
def test_a_failure_is_counted_by_policy_and_reason_and_has_a_sentence(llama, monkeypatch, reason):
    wrong, policy, sentence = FAILURES[reason]
    small = {"num_gpu_blocks_override": 20}
    with engine(llama, BOUNDED, policies=[POLICY], **small) as llm:
        wrong(monkeypatch)
        before = labelled(of_this_process(), "failed_requests")
        asked = greedy(4, {"foveate_policy": policy})
        (prompt,) = prompts([800 if reason == "pool" else 300])
        llm.llm_engine.add_request("0", {"prompt_token_ids": prompt}, asked)
        outputs = []
        while llm.llm_engine.has_unfinished_requests():
            outputs += llm.llm_engine.step()
        assert idle(llm).get_num_free_blocks() == 19
    (answer,) = outputs[-1].outputs
    assert answer.finish_reason == "error"
    assert re.match(sentence, answer.stop_reason)
    after = labelled(of_this_process(), "failed_requests")
    rose = {key: value - before.get(key, 0) for key, value in after.items()}
    label = "full" if reason == "request" else policy  # a prompt without a plan is kept whole
    assert {key: value for key, value in rose.items() if value} == {(label, reason): 1}
