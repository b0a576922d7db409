"""KV heads with different budgets inside vLLM, against transformers with the same counts."""

import pytest
import torch

import foveate
from foveate.vllm.plans.tiers import rooms_of
from tests.profiles import saved
from tests.serving.engine import engine, prompts, serve
from tests.serving.reference import NOISE, by_transformers, counted, counted_by_head

LENGTHS = (300, 333, 64, 511)
LONGEST, LAYERS, HEADS = 1024, 4, 2
SCORES = [[0.2, 3.0], [1.0, 0.1], [2.0, 0.4], [0.3, 0.5]]  # strong heads stand in every layer


@pytest.fixture(scope="module")
def profiles(llama, model, tmp_path_factory):
    """A file of head scores, and one of maps and levels."""
    folder = tmp_path_factory.mktemp("profiles")
    read = [{"input_ids": torch.tensor([prompt])} for prompt in prompts((200, 333))]
    measured = foveate.calibrate(model, "recommended", read)
    return {
        "headkv": saved(folder, "headkv", SCORES, llama.split("/")[-1]),
        "recommended": measured.save(folder / "recommended.safetensors"),
    }


def check_against_transformers(model, policy, rooms, served):
    for name, answer in enumerate(served.answers):
        counts, same = counted_by_head(policy, rooms, len(answer.prompt), HEADS)
        positions, tokens, logprobs = by_transformers(model, same, answer)
        for layer, expected in enumerate(positions):
            mine = served.kept.get((name, layer))
            if mine is None:
                assert set(counts[layer]) == {len(answer.prompt)}
                continue
            for head in range(HEADS):
                assert torch.equal(mine[head], expected[head][expected[head] >= 0])
        assert tokens == answer.tokens
        torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=NOISE)


@pytest.mark.parametrize(
    ("spec", "tiers", "options"),
    [
        ("headkv:budget=25%,window=8,profile={headkv}", 8, {}),
        (
            "headkv:budget=25%,window=8,beta=1.5,profile={headkv}",
            2,
            {"max_num_batched_tokens": 96},
        ),
        (
            "recommended:budget=30%,heads=by_profile,profile={recommended}",
            4,
            {"enable_prefix_caching": True},
        ),
        (
            "h2o+headkv.budget:budget=40%,profile={headkv}",
            2,
            {"num_gpu_blocks_override": 90},
        ),
    ],
)
def test_heads_equal_the_transformers_backend(llama, model, profiles, spec, tiers, options):
    policy = foveate.policy(spec.format(**profiles))
    rooms = [room for (room,) in rooms_of([policy], LAYERS, HEADS, LONGEST, tiers)]
    assert len(set(rooms)) == min(tiers, LAYERS * HEADS)
    options = {"tiers": tiers, "num_gpu_blocks_override": 512} | options
    with engine(llama, str(policy), **options) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=8)
    check_against_transformers(model, policy, rooms, served)
    assert served.idle == options["num_gpu_blocks_override"] - 1


def test_one_number_per_layer_equals_the_transformers_backend(llama, model, profiles):
    spec = "recommended:budget=30%,heads=by_layer,profile={recommended}".format(**profiles)
    policy = foveate.policy(spec)
    rooms = [room for (room,) in rooms_of([policy], LAYERS, HEADS, LONGEST, 4)]
    with engine(llama, str(policy), tiers=4, num_gpu_blocks_override=256) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=8)
    for name, answer in enumerate(served.answers):
        _, same = counted(policy, rooms, len(answer.prompt))
        positions, tokens, logprobs = by_transformers(model, same, answer)
        for layer, expected in enumerate(positions):
            if (name, layer) in served.kept:
                assert torch.equal(served.kept[name, layer], expected)
        assert tokens == answer.tokens
        torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=NOISE)
