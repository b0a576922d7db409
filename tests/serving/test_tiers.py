"""Layers with different budgets inside vLLM, against transformers with the same counts."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import foveate
from foveate.vllm.plans.plans import Plan
from foveate.vllm.plans.tiers import rooms_of
from foveate.vllm.scheduler.kept_report import FIELD, KeptReport
from tests.profiles import saved
from tests.serving.engine import engine, greedy, prompts, serve
from tests.serving.reference import NOISE, by_transformers, counted
from tests.serving.test_options import finished

LENGTHS = (300, 333, 64, 511)
LONGEST = 1024


@pytest.fixture(scope="module")
def profile(llama, tmp_path_factory):
    """Ratios that sort the layers otherwise than they stand: mean 25 %."""
    folder, name = tmp_path_factory.mktemp("profile"), llama.split("/")[-1]
    return saved(folder, "prefixkv", [0.2, 0.45, 0.05, 0.3], name, "25%")


PREFIX = "prefixkv:budget=25%,profile={},when=after_prefill"


@pytest.mark.parametrize(
    ("spec", "tiers", "options"),
    [
        ("pyramidkv:budget=25%,window=8", 8, {}),
        ("pyramidkv:budget=25%,window=8", 2, {"max_num_batched_tokens": 96}),
        (PREFIX, 2, {}),
        # scores that read earlier layers' notes, also of the first, which stays whole in one prompt
        ("david+pyramidkv.budget:budget=51%,recent=8", 4, {}),
    ],
)
def test_tiers_equal_the_transformers_backend(llama, profile, spec, tiers, options):
    policy = foveate.policy(spec.format(profile))
    rooms = [room for (room,) in rooms_of([policy], 4, 2, LONGEST, tiers)]
    assert len(set(rooms)) == min(tiers, 4)
    options = options | {"tiers": tiers, "num_gpu_blocks_override": 256}
    with engine(llama, str(policy), **options) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=8)
    model = AutoModelForCausalLM.from_pretrained(llama).eval()
    held = 0
    for name, answer in enumerate(served.answers):
        counts, same = counted(policy, rooms, len(answer.prompt))
        positions, tokens, logprobs = by_transformers(model, same, answer)
        for place, expected in enumerate(positions):
            if counts[place] < len(answer.prompt):
                assert torch.equal(served.kept[name, place], expected), (name, place)
            else:
                assert (name, place) not in served.kept
        assert tokens == answer.tokens
        torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=NOISE)
        blocks = -(-(len(answer.prompt) + 1) // 32)  # in the step of the first answered token
        held += sum(blocks - room.gap(len(answer.prompt), 32) for room in set(rooms))
    if "max_num_batched_tokens" not in options:  # else the prompts are not complete at once
        assert served.free[1] == 255 - held
    assert served.idle == 255


def test_every_tier_frees_blocks_of_its_own_and_the_response_reports_their_mean(llama):
    with engine(llama, "pyramidkv:budget=25%,window=8", num_gpu_blocks_override=256) as llm:
        served = serve(llm, prompts([300]), tokens=4)
        llm.llm_engine.add_request("0", {"prompt_token_ids": prompts([300])[0]}, greedy(2))
        reported = finished(llm)["0"].kv_transfer_params[FIELD]
    policy = foveate.policy("pyramidkv:budget=25%,window=8")
    rooms = [room for (room,) in rooms_of([policy], 4, 2, LONGEST)]
    gaps = [room.gap(300, 32) for room in rooms]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1]
    assert served.free[1] - served.free[0] == sum(gaps)
    kept, token_bytes = sum(room.kept(300, 32) for room in rooms), 2 * 2 * 32 * 4  # of a layer
    assert reported == {
        "kept_tokens": kept / 4,
        "kv_bytes": kept * token_bytes,
        "kv_bytes_full": 4 * 300 * token_bytes,
    }


@pytest.mark.parametrize(("workers", "groups"), [(2, 1), (1, 2)])
def test_bytes_that_the_scheduler_does_not_know_are_not_reported(workers, groups):
    spec = SimpleNamespace(page_size_bytes=64, block_size=32)
    group = SimpleNamespace(layer_names=["a", "b"], kv_cache_spec=spec)
    config = SimpleNamespace(kv_cache_groups=[group] * groups)
    report, plan = KeptReport.of(config, {0}, workers), Plan(10, 10)
    assert report.add((None, None), plan) == ({FIELD: {"kept_tokens": 10}}, None)
    assert report.add(({"of": "a connector"}, None), plan) == ({"of": "a connector"}, None)
