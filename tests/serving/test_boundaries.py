"""Requests that are compressed while they are read and answered: prompts longer than the pool, and
answers that stay bounded.
"""

import random

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.answers import certain
from tests.serving import tiny
from tests.serving.engine import Traffic, check_alike, engine, greedy, serve
from tests.serving.following import recorded, same
from tests.serving.reference import LEAD
from tests.serving.test_images import prompts as shown
from tests.serving.test_random import held
from tests.serving.tiny_text import drawn
from tests.serving.v2_interpreted import asynchronous

BLOCK = 32
BOTH = "when=over_budget(every=64,reading=true)"
KEYS, WINDOW, SUMS, RECENT = (
    f"knorm:budget=64,{BOTH}",
    "snapkv:budget=70,window=8,when=over_budget(every=40,reading=true)",  # every 64
    f"h2o:budget=64,{BOTH}",
    f"streaming_llm:budget=20%,{BOTH}",
)
READING = "keydiff:budget=64,when=over_budget(every=64,reading=true,answering=false)"
ANSWERING = "rkv:budget=64,every=32"
POLICIES = (KEYS, WINDOW, SUMS, RECENT, READING, ANSWERING)
LENGTHS = (400, 333, 380, 401, 300, 40)
REST = (
    *("bacon", "cam", "chunkkv", "csp", "cur", "david", "divprune", "expected_attention", "finch"),
    *("keydiff", "keyformer", "lagkv", "leverage", "lookm", "mixkv", "nacl", "random", "roco"),
    *("tova", "vnorm"),
)
SIZES = {"max_model_len": 512, "num_gpu_blocks_override": 9}  # of which 8 hold 256 tokens
AHEAD = SIZES | {
    "async_scheduling": True,
    "enable_prefix_caching": True,
    "max_num_batched_tokens": 48,
}


@pytest.fixture(scope="session")
def llama(tiny_folder):
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def llm(llama):
    """An engine that shares pages, and whose passes end before boundaries."""
    options = {"policies": POLICIES[1:], "enable_prefix_caching": True}
    with engine(llama, KEYS, max_num_batched_tokens=48, **options, **SIZES) as made:
        yield made


@pytest.fixture(scope="module")
def served(llm):
    """Six requests of six policies, in a pool that holds none of the long prompts."""
    with recorded() as kept:
        asked = [{"foveate_policy": spec} for spec in POLICIES]
        return serve(llm, drawn(LENGTHS), 100, asked=asked), kept


def test_prompts_longer_than_the_pool_are_served(model, served):
    """Prompts longer than the pool | work | under `when=over_budget(every=N,reading=true)`"""
    answers, kept = served[0].answers, served[1]
    found = [
        same(model, spec, answer, kept[name])
        for name, (spec, answer) in enumerate(zip(POLICIES, answers, strict=True))
    ]
    assert found[0] == [128, 192, 256, 320, 384, 464]
    assert found[5] == [96, 128]
    assert all(len(answer.tokens) == 100 for answer in answers)
    assert max(served[0].running) > 1
    assert served[0].idle == 8


def test_what_the_pool_cannot_hold_is_refused_or_ends_with_it(llm, served):
    from vllm.exceptions import VLLMValidationError

    full = {"foveate_policy": "full"}
    whole = {"prompt_token_ids": drawn([300])[0]}
    with pytest.raises(VLLMValidationError, match=r"300 tokens holds 301 .* the pool 256"):
        llm.llm_engine.add_request("0", whole, greedy(4, full))
    found = serve(llm, drawn([100]), 400, asked=[full], logprobs=0)
    assert len(found.answers[0].tokens) == 256 - 100
    assert found.idle == 8


def test_answers_of_any_length_hold_the_same_pages(llm, model):
    """Answers in bounded memory | work | under `when=over_budget(every=N)`, as `rkv` has it"""
    given, asked = drawn([20, 31, 40, 90]), [{"foveate_policy": ANSWERING}] * 4
    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    most, plain = [], manager.allocate_slots

    def watched(request, *args, **options):
        found = plain(request, *args, **options)
        ((*blocks,),) = manager.get_blocks(request.request_id).blocks
        most.append(sum(not block.is_null for block in blocks))
        return found

    with recorded() as kept, pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "allocate_slots", watched)
        answers = serve(llm, given, 200, asked=asked).answers
    assert max(most) == 4  # 64 and 32 tokens and the next; whole, an answer takes 7
    for name, answer in enumerate(answers):
        assert len(answer.tokens) == 200
        assert len(same(model, ANSWERING, answer, kept[name])) >= 4


@pytest.mark.parametrize("requests", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_requests_at_random_are_answered_as_those_that_were_compared(llm, served, requests):
    """With some that go away, or are preempted."""
    draw, asked = random.Random(requests), {}
    manager = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    free = manager.block_pool.get_num_free_blocks
    traffic = Traffic(llm, draw, requests, most=8, burst=3, leaving=0.05)

    def ask(name):
        which, tokens = draw.randrange(len(POLICIES)), draw.choice([1, 3, 40, 100])
        asked[name] = served[0].answers[which], tokens
        choice = {"foveate_policy": POLICIES[which]}
        return {"prompt_token_ids": asked[name][0].prompt}, greedy(tokens, choice)

    finished, shared = 0, 0
    for outputs in traffic.steps(ask):
        for output in outputs:
            right, tokens = asked[output.request_id]
            got, sure = list(output.outputs[0].token_ids), certain(right.logprobs, LEAD)
            assert got[:sure] == right.tokens[: min(sure, len(got))], output.request_id
            assert not output.finished or len(got) == tokens
            finished += output.finished
            shared += output.finished and output.num_cached_tokens > 64
        blocks = held(manager)
        assert len(set(blocks)) + free() == 8
    assert finished + traffic.cancelled == requests
    assert traffic.preempted
    assert shared
    assert free() == 8
    check_snapshots(llm)


def check_snapshots(llm):
    """The worker has those that the scheduler knows, and these are no more than the pool holds."""
    llm.llm_engine.step()
    core = llm.llm_engine.engine_core.engine_core
    beginnings = core.scheduler._beginnings
    numbers = {one.number for one in beginnings._shared.values()}
    blocks = sum(len(one.names) for one in beginnings._shared.values())
    assert blocks <= core.scheduler._pool_blocks
    snapshots = core.model_executor.driver_worker.worker.prompts.snapshots
    assert snapshots._layers.keys() == numbers | set(beginnings._dropped)
    assert not beginnings._awaited


def test_boundaries_within_images_equal_the_transformers_backend(tiny_folder):
    folder, given = tiny_folder("qwen2_vl"), shown(tiny.QWEN_IMAGE)
    every = "when=over_budget(every=32,reading=true,answering=false)"
    specs = [f"{name}:budget=48,{every}" for name in ("mixkv", "lookm", "david")]
    more = {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 2, "video": 0}}
    with recorded() as kept, engine(folder, specs[0], policies=specs, **SIZES, **more) as llm:
        asked = [{"foveate_policy": spec} for spec in specs]
        answers = serve(llm, given, 40, asked=asked).answers
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    for name, (spec, answer, one) in enumerate(zip(specs, answers, given, strict=True)):
        images = one["multi_modal_data"]["image"]
        inputs = processor(text=[one["prompt"]], images=images, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == answer.prompt
        assert len(same(model, spec, answer, kept[name], inputs)) > 1


@pytest.mark.slow
def test_every_policy_that_is_served_again_equals_the_transformers_backend(llama, model):
    specs = [f"{name}:budget=64,{BOTH}" for name in REST]
    with recorded() as kept, engine(llama, specs[0], policies=specs[1:], **SIZES) as llm:
        asked = [{"foveate_policy": spec} for spec in specs]
        answers = serve(llm, drawn([200] * len(specs)), 70, asked=asked).answers
    for name, (spec, answer) in enumerate(zip(specs, answers, strict=True)):
        assert same(model, spec, answer, kept[name]) == [128, 192, 264], spec


def test_stock_vllm_does_not_start(llama):
    small = {"max_model_len": 512, "kv_cache_memory_bytes": 9 * 2 * 2 * 2 * BLOCK * 32 * 4}
    with (
        pytest.raises(ValueError, match="To serve at least one request"),
        engine(llama, num_gpu_blocks_override=None, **small),
    ):
        pass
    with engine(llama, KEYS, num_gpu_blocks_override=None, **small) as llm:
        pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        assert pool.num_gpu_blocks == 9


def test_nothing_is_freed_that_a_step_in_flight_reads(llama, model):
    with (
        recorded() as kept,
        asynchronous(),
        engine(llama, KEYS, policies=POLICIES[1:], **AHEAD) as llm,
    ):
        asked = [{"foveate_policy": spec} for spec in POLICIES]
        served = serve(llm, drawn(LENGTHS), 100, asked=asked)
        again = serve(llm, drawn(LENGTHS)[:1], 100)
    for name, (spec, answer) in enumerate(zip(POLICIES, served.answers, strict=True)):
        assert len(same(model, spec, answer, kept[name])) > 1
    assert served.idle == again.idle == 8
    check_alike([again.answers[0].tokens], served._replace(answers=served.answers[:1]))
