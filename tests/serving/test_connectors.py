"""KV connectors beside policies: prompts that are kept whole pass as in stock vLLM, and declared
contexts are offloaded as they are kept.
"""

import random

import pytest

from tests.answers import certain
from tests.serving.engine import Traffic, check_same, engine, greedy, prompts, serve
from tests.serving.offloaded import MOVED, offloading
from tests.serving.reference import LEAD
from tests.serving.test_requests import check

POLICY = "snapkv:budget=20%,window=8"
FULL = {"foveate_policy": "full"}
CONTEXT = {"foveate_context": 320}
SMALL = {"num_gpu_blocks_override": 24, "max_model_len": 512, "enable_prefix_caching": True}


def moved():
    found = dict(MOVED)
    MOVED.update(store=0, load=0)
    return found


def asked(llm, given, *extras):
    return serve(llm, given, 8, asked=list(extras))


def test_prompts_kept_whole_are_offloaded_as_in_stock(llama):
    """KV connectors, prompts that are kept whole | work | as in stock vLLM"""
    (prompt,) = prompts([330])
    answers = []
    for policy in (None, POLICY):
        with engine(llama, policy, **SMALL | offloading()) as llm:
            first = asked(llm, [prompt], FULL if policy else None)
            stored = moved()
            for seed in (50, 51):
                asked(llm, prompts([480], seed), FULL if policy else None)
            moved()
            again = asked(llm, [prompt], FULL if policy else None)
            answers.append((first, again, stored, moved()["load"]))
    stock, ours = answers
    check_same(ours[0], stock[0])
    check_same(ours[1], stock[1])
    assert ours[2:] == stock[2:]
    assert ours[3] > 0


def test_a_declared_context_is_offloaded_as_it_is_kept(llama, model):
    """KV connectors, declared contexts | work | OffloadingConnector moves what is kept of them;
    tested with a worker that copies on CPUs
    """
    # when the pool has lost a context, a second question is answered to the bit as with it
    (context,) = prompts([320])
    questions = [context + more for more in prompts([20, 30], seed=9)]
    with engine(llama, POLICY, **SMALL | offloading()) as llm:
        cold = asked(llm, questions[:1], CONTEXT)
        asked(llm, prompts([40], 7), None)  # vLLM stores with the step after
        stored = moved()
        warm = asked(llm, questions[1:], CONTEXT)
        assert moved()["load"] == 0
        for seed in (50, 51, 52):
            asked(llm, prompts([480], seed), FULL)
        moved()
        loaded = asked(llm, questions[1:], CONTEXT)
        taken = moved()["load"]
        again = asked(llm, questions[1:], CONTEXT)  # in the pool since it was loaded
        assert moved()["load"] == 0
    check(model, cold, [POLICY], contexts=[320])
    check(model, warm, [POLICY], contexts=[320])
    assert loaded.shared == warm.shared == again.shared == [320]
    for each in (loaded, again):
        assert each.answers[0].tokens == warm.answers[0].tokens
        assert (each.answers[0].logprobs == warm.answers[0].logprobs).all()
    page = 2 * 32 * 2 * 32 * 4 * 4  # keys and values, tokens, heads, numbers, bytes, layers
    kept = 64  # 20 % of 320
    assert taken == kept // 32 * page
    assert stored["store"] == taken


def test_other_connectors_see_no_compressed_request(llama, model, tmp_path):
    """They pass whole prompts as in stock vLLM, and are not told of others."""
    from vllm.config import KVTransferConfig

    (prompt, other), found, files = prompts([330, 200]), [], []
    for policy in (None, POLICY):
        extra = {"shared_storage_path": str(tmp_path / str(policy is None))}
        transfer = KVTransferConfig(
            kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
        with engine(llama, policy, **SMALL, kv_transfer_config=transfer) as llm:
            full = FULL if policy else None
            found.append(asked(llm, [prompt], full))
            files.append(len(list(tmp_path.rglob("*.safetensors"))))
            if policy:
                check(model, asked(llm, [other], None), [POLICY])
                check(model, asked(llm, [other], {"foveate_context": 160}), [POLICY], [160])
            found.append(asked(llm, [prompt], full))
            files.append(len(list(tmp_path.rglob("*.safetensors"))))
    check_same(found[2], found[0])
    check_same(found[3], found[1])
    assert files == [4, 4, 8, 8]  # layers


@pytest.mark.parametrize("requests", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_requests_at_random_are_answered_as_without_a_connector(llama, requests):
    """Contexts, whole prompts and others in a pool that keeps little; some go away."""
    draw, documents = random.Random(requests), prompts([320, 256, 288])
    choices = [
        (document + more, extra)
        for document in documents
        for more in prompts([20, 30], seed=9)
        for extra in (None, FULL, {"foveate_context": len(document)})
    ]
    with engine(llama, POLICY, num_gpu_blocks_override=200) as llm:
        given, extras = zip(*choices, strict=True)
        right = asked(llm, given, *extras).answers
    with engine(llama, POLICY, **SMALL | offloading()) as llm:
        pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        idle, which = pool.get_num_free_blocks(), {}
        moved()

        def ask(name):
            which[name] = draw.randrange(len(choices))
            prompt, extra = choices[which[name]]
            return {"prompt_token_ids": prompt}, greedy(draw.choice([1, 4, 8]), extra)

        traffic = Traffic(llm, draw, requests, most=6, burst=2, leaving=0.05)
        for outputs in traffic.steps(ask):
            for output in outputs:
                answer, got = right[which[output.request_id]], list(output.outputs[0].token_ids)
                sure = certain(answer.logprobs, LEAD)
                assert got[:sure] == answer.tokens[: min(sure, len(got))], output.request_id
        assert pool.get_num_free_blocks() == idle
        assert min(moved().values()) > 0
