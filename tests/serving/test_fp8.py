"""Caches of FP8 codes under a policy. No device for them is here: what ``codes`` puts in its place
stands for AVX-512 and for FlashAttention, and vLLM's own kernels run in Triton's interpreter.
"""

from unittest import mock

import pytest
import torch

import foveate
from foveate.vllm.plans.gap import Room
from tests.serving import codes
from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.following import recorded, same
from tests.serving.reference import by_transformers
from tests.serving.test_refused import configuration
from tests.serving.test_triton import answered

LENGTHS = (150, 97, 40)
QUARTER, WHOLE = "snapkv:budget=25%,window=8", "snapkv:budget=100%,window=8"
PLATFORMS = {"cpu": (codes.on_cpu, 32), "gpu": (codes.on_gpu, 16)}
NOISE = 0.1  # of log-probabilities: noise can make a number the next code
MERGED = 0.5  # the mean of two codes often lies halfway between two others


def served(llama, platform, policy, kind="fp8", **options):
    where, block = PLATFORMS[platform]
    sizes = {"block_size": block, "max_model_len": 256, "kv_cache_dtype": kind}
    with where(stock=policy is None), engine(llama, policy, **sizes | options) as llm:
        return serve(llm, prompts(LENGTHS), tokens=8)


def check(model, policy, found, block, kind="fp8", queries=False, noise=NOISE):
    """Transformers keeps and answers the same, if it attends to what the codes stand for."""
    spec = foveate.policy(policy)
    room = Room.of(spec.amount, spec.select.protects)
    with codes.rounding(model, codes.TYPES[kind], queries):
        for name, answer in enumerate(found.answers):
            kept = room.kept(len(answer.prompt), block)
            told = by_transformers(model, spec.but(budget=kept), answer, lead=2 * noise, near=NOISE)
            positions, tokens, logprobs = told
            for place, expected in enumerate(positions):
                if kept < len(answer.prompt):
                    assert torch.equal(found.kept[name, place], expected), (name, place)
            assert tokens == answer.tokens
            torch.testing.assert_close(logprobs, answer.logprobs, rtol=0, atol=noise)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_keeping_everything_is_stock_vllm(llama, platform):
    stock = served(llama, platform, None)
    check_same(served(llama, platform, WHOLE), stock)


@pytest.mark.parametrize(
    ("platform", "policy", "kind", "noise"),
    [
        ("cpu", QUARTER, "fp8", NOISE),
        ("cpu", "lookm:budget=40%", "fp8_e5m2", MERGED),
        ("gpu", QUARTER, "fp8", NOISE),
    ],
)
def test_scores_and_answers_are_of_what_the_codes_stand_for(
    llama, model, platform, policy, kind, noise
):
    found = served(llama, platform, policy, kind, max_num_batched_tokens=96)
    check(model, policy, found, PLATFORMS[platform][1], kind, platform == "gpu", noise)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_codes_are_compressed_again_and_again(llama, model, platform):
    """Scores at every boundary, and answers, are of what the codes stand for."""
    again = "snapkv:budget=32,window=8,when=over_budget(every=32,reading=true)"
    block = PLATFORMS[platform][1]
    with recorded() as kept:
        found = served(llama, platform, again, max_num_batched_tokens=48)
    with codes.rounding(model, codes.TYPES["fp8"], queries=platform == "gpu"):
        for name, answer in enumerate(found.answers[:2]):
            assert same(model, again, answer, kept[name], block=block, noise=NOISE)


def test_scales_of_each_head_are_those_of_its_codes(llama, model):
    """Keys, values and queries with a scale for each KV head, as a checkpoint may bring them."""
    scales = (1.0, 0.5)
    with codes.per_head(scales):
        found = served(llama, "gpu", QUARTER, max_num_batched_tokens=96)
        merged = served(llama, "gpu", "lookm:budget=40%")
        check(model, QUARTER, found, 16, queries=True)
        check(model, "lookm:budget=40%", merged, 16, queries=True, noise=MERGED)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_pairs_that_stay_are_moved_code_by_code(llama, platform):
    """A cache of FP8 codes, `--kv-cache-dtype fp8` | works | codes are moved as they are, those of
    merged pairs made anew; tested with stand-ins for the kernels of devices that have it
    """
    from foveate.vllm.worker.attention import Compressing

    compress, moved = Compressing.compress, []

    def watched(self, prompts, rows, layer, query, cells):
        (row,), (cell,) = rows, cells
        before = self.read(cell.cache, row.table, row.end)
        compress(self, prompts, rows, layer, query, cells)
        after = self.read(cell.cache, row.table, row.end)
        kept = row.prompt.kept.get(prompts.ordinals[layer.layer_name])
        for old, new in zip(before, after, strict=True):
            for head, positions in enumerate(kept or ()):
                stayed = new[0, head, -len(positions) :]
                moved.append(torch.equal(stayed, old[0, head, positions]))

    with mock.patch.object(Compressing, "compress", watched):
        found = served(llama, platform, QUARTER)
    assert all(moved)
    assert len(moved) == 4 * len(found.kept) > 0  # keys and values of two heads


def test_a_quarter_in_vllms_own_kernels(llama, model):
    stock, whole, quarter = answered(llama, "--codes", "", WHOLE, QUARTER)
    check_same(whole, stock)
    assert quarter.kept
    check(model, QUARTER, quarter, block=16)


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2"])
def test_the_codes_with_which_vllm_answers_wrongly_are_warned_of(llama, caplog, kind):
    with codes.on_cpu(stock=False):
        for policy in ({"foveate": {"policy": QUARTER}}, {}):
            caplog.clear()
            configuration(llama, kv_cache_dtype=kind, additional_config=policy)
            warned = [line for line in caplog.messages if "fp8_e5m2: vLLM's answers" in line]
            assert len(warned) == (kind == "fp8_e5m2" and bool(policy))
