"""Prompts that begin alike: what one has left compressed, another starts behind."""

from types import SimpleNamespace

import pytest
import torch

import foveate
from foveate.vllm.plans.plans import Plan
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.tiers import room_of
from foveate.vllm.scheduler.beginnings import Beginnings
from foveate.vllm.scheduler.blocks import CompressedManager
from tests.serving.engine import check_alike, engine, greedy, prompts, serve
from tests.serving.following import recorded, same
from tests.serving.prometheus import foveate_metrics, of_this_process
from tests.serving.test_boundaries import REST
from tests.serving.test_images import chat, noise
from tests.serving.test_options import adapter, finished
from tests.serving.tiny import QWEN_IMAGE
from tests.serving.tiny_text import drawn

EVERY = "when=over_budget(every=64,reading=true)"
KEYS, WINDOW, SUMS, MERGED = (
    f"knorm:budget=64,{EVERY}",
    f"snapkv:budget=150,window=8,{EVERY}",  # 160 in whole blocks: more than come between boundaries
    f"h2o:budget=100,{EVERY}",
    f"lookm:budget=50,{EVERY}",
)
POLICIES = (KEYS, WINDOW, SUMS, MERGED)
WIDE = f"knorm:budget=128,{EVERY}"  # keeps more than comes between two boundaries
COMMON, ENDS = 300, (90, 37, 15)  # with boundaries after 128, 192 and 256 tokens
POOL = 95  # blocks, of which copies of what is kept take 70 in one of the tests


@pytest.fixture(scope="session")
def llama(tiny_folder):
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def llm(llama):
    """An engine whose passes end before boundaries, as each reads at most 32 tokens."""
    options = {"enable_prefix_caching": True, "max_model_len": 512, "max_num_batched_tokens": 32}
    options["num_gpu_blocks_override"] = POOL + 1
    with engine(llama, KEYS, policies=(*POLICIES[1:], WIDE), **options) as started:
        yield started


@pytest.mark.parametrize(("spec", "first"), [(WIDE, 192), (KEYS, 128)])
def test_a_request_alone_is_answered_if_its_passes_end_before_boundaries(llm, model, spec, first):
    """Pairs of an earlier boundary have been copied then, and the next one moves pairs to some."""
    ((served, kept),) = one_by_one(llm, drawn([300], seed=7), spec, ["alone"])
    boundaries = same(model, spec, served.answers[0], kept)
    assert boundaries == [*range(first, 300, 64), 300, 364]
    assert served.idle == POOL


def alike():
    """Prompts that have their first tokens in common."""
    (common,) = drawn([COMMON])
    return [common + end for end in drawn(ENDS, seed=1)]


def one_by_one(llm, given, spec, salts, tokens=70):
    """What each is answered, and keeps at boundaries; one after the other, so that each may start
    where another of the same salt has been.
    """
    served = []
    for prompt, salt in zip(given, salts, strict=True):
        one = {"prompt_token_ids": prompt, "cache_salt": salt}
        with recorded() as kept:
            answer = serve(llm, [one], tokens, asked=[{"foveate_policy": spec}])
        served.append((answer, kept[0]))
    return served


@pytest.mark.parametrize(("spec", "last"), [*zip(POLICIES, (256, 288, 256, 256), strict=True)])
def test_a_prompt_starts_at_the_last_boundary_that_it_has_in_common(llm, model, spec, last):
    """Prompts that begin alike | share | what is kept, under
    `when=over_budget(every=N,reading=true)`
    """
    given = alike()
    alone = one_by_one(llm, given, spec, [f"{spec} {number}" for number in range(3)])
    shared = one_by_one(llm, given, spec, [spec] * 3)
    assert [one.shared for one, _ in alone] == [[0], [0], [0]]
    starts = [one.shared[0] for one, _ in shared]
    assert starts == [0, last, last]
    for start, (mine, kept), (theirs, every) in zip(starts, shared, alone, strict=True):
        before = {at: heads for at, heads in every.items() if at[1] <= start}
        assert kept.keys() | before.keys() == every.keys()
        for at, heads in kept.items():
            assert all(map(torch.equal, heads, every[at])), (spec, at)
        (answer,) = mine.answers
        assert answer.tokens == theirs.answers[0].tokens
        torch.testing.assert_close(answer.logprobs, theirs.answers[0].logprobs, rtol=0, atol=1e-4)
        same(model, spec, answer, before | kept)
    assert mine.idle == POOL
    at_once = serve(llm, salted(given, spec), 70, asked=[{"foveate_policy": spec}] * 3)
    assert min(at_once.shared) == last  # each writes to blocks of its own
    check_alike([one.answers[0].tokens for one, _ in alone], at_once)
    assert at_once.idle == POOL


@pytest.mark.slow
def test_every_policy_that_is_served_so_shares_exactly(llama):
    specs = [f"{name}:budget=64,{EVERY}" for name in REST]
    options = {"policies": specs[1:], "enable_prefix_caching": True, "max_model_len": 512}
    with engine(llama, specs[0], **options) as llm:
        for spec in specs:
            alone = one_by_one(llm, alike()[1:], spec, [f"{spec} 1", f"{spec} 2"], tokens=4)
            shared = one_by_one(llm, alike()[1:], spec, [spec] * 2, tokens=4)
            fits = foveate.policy(spec).score.queries(64) <= 64  # of those between boundaries
            assert (shared[1][0].shared[0] in (192, 256)) == fits, spec
            for (mine, kept), (theirs, every) in zip(shared, alone, strict=True):
                assert all(all(map(torch.equal, heads, every[at])) for at, heads in kept.items()), (
                    spec
                )
                ((answer,), (right,)) = mine.answers, theirs.answers
                torch.testing.assert_close(answer.logprobs, right.logprobs, rtol=0, atol=1e-4)


def salted(given, salt):
    return [{"prompt_token_ids": prompt, "cache_salt": salt} for prompt in given]


def test_another_salt_policy_or_budget_shares_nothing_compressed(llm):
    """The first 64 tokens lie there whole, for all."""
    given = salted(alike()[:1], "mine")
    (yours,) = salted(alike()[:1], "yours")
    keys = {"foveate_policy": KEYS}
    assert serve(llm, given, 2, asked=[keys]).shared == [0]
    others = [{"foveate_policy": WINDOW}, keys | {"foveate_budget": 96}, {"foveate_policy": SUMS}]
    whole = [serve(llm, given, 2, asked=[other]).shared for other in others]
    assert whole == [[64], [64], [0]]  # sums need every query
    assert serve(llm, [yours], 2, asked=[keys]).shared == [0]
    before = foveate_metrics(of_this_process())["tokens_not_read"]
    assert serve(llm, given, 2, asked=[keys]).shared == [384]
    assert foveate_metrics(of_this_process())["tokens_not_read"] == before + 384


@pytest.mark.parametrize("at_once", [True, False])
def test_a_block_is_the_target_of_one_copy(at_once):
    """The pool hands a copy of the step before on, to the very request that starts behind it."""
    from vllm.v1.core.block_pool import BlockPool

    pool, manager = BlockPool(6, True, hash_block_size=32), object.__new__(CompressedManager)
    policy, null = foveate.policy(KEYS), pool.null_block
    boundaries = Rooms((room_of(policy),), 32).own(400)
    plan = Plan(400, 400, 0, policy, boundaries={0: boundaries})
    manager.kv_cache_group_id, manager.block_size = 0, 32
    manager.req_to_blocks = {"a": [null, null, *pool.get_new_blocks(2)]}
    a, b = (SimpleNamespace(request_id=name, block_hashes=[b"same"] * 12) for name in "ab")
    beginnings = Beginnings([manager], pool, 5)
    assert beginnings.save(a, plan, 128) == 1
    assert beginnings.longest(b, plan, 399) is None  # as it is not compressed yet
    beginnings.settle(1, failed=False)
    first = [] if at_once else beginnings.take_copies({})
    found = beginnings.longest(b, plan, 399)
    assert found.tokens == 128
    manager.req_to_blocks["b"] = [null, null, *pool.get_new_blocks(2)]
    copies = beginnings.take_copies({"b": found})
    assert [block.block_id for block in manager.req_to_blocks["b"][2:]] == [5, 3]
    assert sorted(map(tuple, first)) == ([] if at_once else [(1, 3), (2, 4)])
    assert sorted(map(tuple, copies)) == ([(1, 5), (2, 3), (2, 4)] if at_once else [(3, 5), (4, 3)])
    assert beginnings.longest(a, plan, 399) is None  # half of it is gone
    assert beginnings.take_dropped() == (1,)


def test_another_image_of_the_same_size_shares_nothing_of_it(tiny_folder):
    more = {"skip_tokenizer_init": False, "limit_mm_per_prompt": {"image": 1, "video": 0}}
    spec = f"mixkv:budget=48,window=8,{EVERY}"

    def shows(seed):
        picture = noise(seed, 420, 280)
        return {"prompt": chat(QWEN_IMAGE, 1), "multi_modal_data": {"image": [picture]}}

    with engine(tiny_folder("qwen2_vl"), spec, enable_prefix_caching=True, **more) as llm:
        first, other, second = (serve(llm, [shows(seed)], 8) for seed in (0, 1, 0))
    assert (first.shared, other.shared, second.shared) == ([0], [0], [128])
    assert second.answers[0].tokens == first.answers[0].tokens != other.answers[0].tokens
    close = {"rtol": 0, "atol": 1e-4}
    torch.testing.assert_close(second.answers[0].logprobs, first.answers[0].logprobs, **close)


def test_another_adapter_shares_nothing(llama_of_four_layers, tmp_path):
    from vllm.lora.request import LoRARequest

    adapter(tmp_path)
    (prompt,) = prompts([300])
    options = {"enable_prefix_caching": True, "max_lora_rank": 8, "max_loras": 2}
    with engine(llama_of_four_layers, KEYS, enable_lora=True, **options) as llm:
        shared = []
        for name, mine in enumerate([True, False, True, False]):
            with_it = LoRARequest("mine", 1, str(tmp_path)) if mine else None
            given = {"prompt_token_ids": prompt}, greedy(2)
            llm.llm_engine.add_request(str(name), *given, lora_request=with_it)
            shared.append(finished(llm)[str(name)].num_cached_tokens)
    assert shared == [0, 0, 256, 256]
