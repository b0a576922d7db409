"""What a request keeps is decided once: workers do as the scheduler says, and check what they read
against what it holds.
"""

import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from foveate.vllm.plans.boundaries import Boundaries, Move
from foveate.vllm.plans.failures import Reason
from foveate.vllm.plans.orders import Orders
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.scheduler import scheduler as scheduling
from foveate.vllm.startup.http import refuse_booleans
from foveate.vllm.worker import parallel
from foveate.vllm.worker.prompts import Prompts
from tests.serving.engine import engine, greedy, prompts, serve
from tests.serving.test_images import prompts as with_images
from tests.serving.test_requests import check
from tests.serving.test_robust import idle, reasons
from tests.serving.tiny import QWEN_IMAGE

POLICY, WINDOW = "knorm:budget=25%", "snapkv:budget=25%,window=8"
LENGTHS = (300, 135, 97)


def test_a_context_ends_where_the_scheduler_says(tiny_folder):
    """Text-only Gemma 4: the first KV cache group has blocks of 64 tokens, which 192 of 230 would
    fill, and the compressed one of 32.
    """
    folder = tiny_folder("gemma4")
    given = [[token % 64 for token in prompt] for prompt in prompts([240, 100])]
    with engine(folder, WINDOW, num_gpu_blocks_override=100, max_model_len=512) as llm:
        core = llm.llm_engine.engine_core.engine_core
        groups = core.scheduler.kv_cache_config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups]
        served = serve(llm, given, 8, asked=[{"foveate_context": 230}, None])
        assert idle(llm).get_num_free_blocks() == 99
    assert sizes == [64, 32]
    assert served.kept[0, 0].shape == (2, 64)  # of 224: 56, and up to whole blocks
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    check(model, served, [WINDOW] * 2, [224, None])


@pytest.mark.parametrize("first", [1, 1.0])
def test_tokens_are_no_shares_whoever_comes_first(llama, model, first):
    """A client that leaves before it is scheduled has asked the scheduler, and no worker."""
    (given,) = prompts([200])
    second = 1.0 if isinstance(first, int) else 1
    with engine(llama, POLICY) as llm:
        before = greedy(4, {"foveate_budget": first})
        llm.llm_engine.add_request("gone", {"prompt_token_ids": given}, before)
        llm.llm_engine.abort_request(["gone"])
        asked = [{"foveate_budget": second}, {"foveate_budget": first}]
        served = serve(llm, [given, given], 8, asked=asked)
        assert idle(llm).get_num_free_blocks() == 63
    tokens, whole = ("knorm:budget=1", "knorm:budget=100%")
    check(model, served, [whole, tokens] if isinstance(first, int) else [tokens, whole])


WRONG_ORDERS = {
    "whole": (
        lambda order: order._replace(boundaries={}),
        "tokens mean no move, and its order a move",
    ),
    "shorter gap": (
        lambda order: order._replace(boundaries={0: Boundaries(135, 71, budget=71, freed=2)}),
        "its tokens mean a move into the blocks from 2 on, at token 135, and its order a move into "
        "the blocks from 3 on",
    ),
    "other blocks": (
        lambda order: order._replace(boundaries={0: order.boundaries[0]._replace(kept=1)}),
        "not told in blocks of 32",
    ),
    "another policy": (lambda order: order._replace(spec="h2o:budget=10%"), "no order"),
    "none": (lambda order: None, "no order"),
}


@pytest.mark.parametrize("kind", WRONG_ORDERS)
def test_a_wrong_order_fails_its_request_alone(llama, monkeypatch, caplog, kind):
    """Were scheduler and worker ever to disagree, nobody would read what is another's."""
    wrong, said = WRONG_ORDERS[kind]
    plain = scheduling.Planning._order

    def order(self, name):
        right = plain(self, name)
        return wrong(right) if right.prompt == 135 else right

    with engine(llama, POLICY) as llm:
        served = serve(llm, prompts(LENGTHS), 6)
        monkeypatch.setattr(scheduling.Planning, "_order", order)
        found = reasons(llm, prompts(LENGTHS))
        assert idle(llm).get_num_free_blocks() == 63
    assert [found[name][0] for name in "012"] == ["length", "error", "length"]
    assert [found[name][1] for name in "02"] == [served.answers[i].tokens for i in (0, 2)]
    (line,) = [one for one in caplog.messages if "fails" in one]
    assert said in line


def test_orders_reach_workers_in_other_processes():
    from vllm.v1.core.sched.output import SchedulerOutput

    output = SchedulerOutput.make_empty()
    assert Orders.sent(output) == Orders()
    moves = {"a": {1: Move(5, 224)}}
    order = Plan(300, 224, boundaries={1: Boundaries(224, 64, budget=64, freed=5)})
    orders = Orders({"a": order}, {"a": {1: 5}}, moves=moves)
    orders.send(output)
    assert Orders.sent(pickle.loads(pickle.dumps(output))) == orders
    assert len(pickle.dumps(orders)) < 1000


def test_vllms_null_block_is_the_one_that_is_read_instead():
    from vllm.v1.attention.backends.utils import NULL_BLOCK_ID

    from foveate.vllm.worker.metadata import NULL_BLOCK

    assert NULL_BLOCK == NULL_BLOCK_ID


def test_images_of_a_refused_request_are_sent_with_the_next(tiny_folder):
    """vLLM's front takes what it has read for sent."""
    from vllm.exceptions import VLLMValidationError

    one, *_ = with_images(QWEN_IMAGE)
    more = {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 2, "video": 0}}
    with engine(tiny_folder("qwen2_vl"), POLICY, **more) as llm:
        with pytest.raises(VLLMValidationError, match="True is no amount"):
            llm.llm_engine.add_request("0", one, greedy(2, {"foveate_budget": True}))
        (answer,) = serve(llm, [one], 2).answers
    assert len(answer.tokens) == 2
    assert torch.isfinite(answer.logprobs).all()


def test_a_prompt_that_one_worker_cannot_compress_fails_in_all(monkeypatch):
    """vLLM hears the first of tensor parallelism's workers, and contexts are shared among all."""
    offer = Offer(settings_from({"foveate": {"policy": POLICY}}))
    prompts = Prompts(offer, {"layer": 0}, SimpleNamespace(device="cpu"))
    told = []

    def all_reduce(mine, most, group):
        told.append((mine.tolist(), most, group))
        mine.copy_(torch.tensor([0, 1, 1]))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    group = SimpleNamespace(world_size=2, cpu_group="of both")
    monkeypatch.setattr(parallel, "get_tp_group", lambda: group)
    prompts.fail("c", Reason.COMPRESSION, "no memory left")
    parallel.share_failures(prompts, ["a", "b", "c"])
    assert told == [([0, 0, 1], torch.distributed.ReduceOp.MAX, "of both")]
    assert prompts.take_failed().keys() == {"b", "c"}
    group.world_size = 1
    parallel.share_failures(prompts, ["a", "b", "c"])
    assert len(told) == 1


def test_a_prompt_that_one_stage_cannot_compress_fails_in_the_last(monkeypatch):
    """vLLM hears the last of pipeline parallelism's stages; no stage waits for the next."""
    names, sent = ["a", "b", "c"], []

    def isend(failed, to, group, tag):
        sent.append((failed.clone(), to))
        return SimpleNamespace(wait=lambda: None)

    def recv(failed, source, group, tag):
        assert source == stage - 1
        failed.copy_(sent.pop()[0])

    monkeypatch.setattr(torch.distributed, "isend", isend)
    monkeypatch.setattr(torch.distributed, "recv", recv)
    for stage, fails in enumerate(("c", "a", None)):
        ranks = {"prev_rank": stage - 1, "next_rank": stage + 1, "cpu_group": None}
        ends = {"is_first_rank": stage == 0, "is_last_rank": stage == 2, "world_size": 3}
        group = SimpleNamespace(**ranks, **ends)
        monkeypatch.setattr(parallel, "get_pp_group", lambda group=group: group)
        offer = Offer(settings_from({"foveate": {"policy": POLICY}}))
        prompts = Prompts(offer, {"layer": stage}, SimpleNamespace(device="cpu"), 3)
        if fails:
            prompts.fail(fails, Reason.COMPRESSION, "no memory left")
        parallel.StageFailures().pass_on(prompts, names)
        assert [to for _, to in sent] == ([] if stage == 2 else [stage + 1])
    assert prompts.take_failed().keys() == {"a", "c"}


@pytest.mark.parametrize("given", [True, False, None])
def test_truths_and_null_over_http_are_no_numbers(given):
    """Pydantic takes true for 1 where a number is meant, and has four errors of null."""
    from pydantic import ValidationError
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    refuse_booleans()
    refuse_booleans()
    plain = {"model": "tiny", "prompt": "a"}
    for name in ("foveate_context", "foveate_budget"):
        said = f"{name}={json.dumps(given)}: give a number"
        with pytest.raises(ValidationError, match=said) as refused:
            CompletionRequest(**plain, vllm_xargs={name: given})
        assert refused.value.error_count() == 1
    for value in (1, 1.0, "100%"):
        theirs = bool(given)  # of others nothing is said
        found = CompletionRequest(**plain, vllm_xargs={"foveate_budget": value, "theirs": theirs})
        assert type(found.vllm_xargs["foveate_budget"]) is type(value)
        assert found.vllm_xargs["theirs"] == theirs
