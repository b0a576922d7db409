"""KV connectors beside policies: prompts that are kept whole pass as in stock vLLM, and declared
contexts are offloaded as they are kept.
"""

from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.offloaded import MOVED, offloading
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


def flush(llm, seed):
    """Fill the pool with other prompts, so that nothing is left of earlier ones."""
    for n in range(2):
        asked(llm, prompts([480], seed=seed + n), FULL)


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
