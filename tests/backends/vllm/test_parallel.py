"""Which policies decide head by head: half the heads alone keep what they keep among all."""

import pytest
import torch

import foveate
from foveate.errors import UnsupportedEngine, UnsupportedPolicy
from foveate.policies.method import METHODS
from foveate.stages.score import KeyNorm
from foveate.vllm.plans.settings import check_policy
from foveate.vllm.startup.support import check_parallel

TOKENS = 80


def served():
    """Every method that needs nothing but a budget and can be served, and some of their options."""
    specs = [*METHODS, "mixkv+lookm.merge", "csp+pyramidkv.budget"]
    given = [f"{spec}:budget=50%" for spec in specs] + [
        "csp:budget=50%,head_mean=true",
        "snapkv:budget=50%,group=max,window=4",
        "lookm:budget=50%,similarity_filter=true",
    ]
    for spec in given:
        try:
            policy = foveate.policy(spec)
            check_policy(policy)
        except Exception:
            continue
        yield policy


def kept(policy, heads):
    """What is kept of the same random prompt, by some of its KV heads, with two queries each."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 8, TOKENS, 8), *torch.randn(2, 1, 4, TOKENS, 8)
    vision = torch.arange(TOKENS)[None] % 7 < 4
    layer = (q.view(1, 4, 2, TOKENS, 8)[:, heads].flatten(1, 2), k[:, heads], v[:, heads])
    return foveate.compress_tensors(policy, [layer] * 3, vision=vision)


def parallel(policy):
    try:
        check_parallel(policy, 2, 4)
    except UnsupportedPolicy:
        return False
    return True


@pytest.mark.parametrize("policy", [p for p in served() if parallel(p)], ids=str)
def test_half_the_heads_alone_keep_what_they_keep_among_all(policy):
    whole = kept(policy, slice(0, 4))
    for part in (slice(0, 2), slice(2, 4)):
        for mine, all_heads in zip(kept(policy, part), whole, strict=True):
            assert torch.equal(mine.mask, all_heads.mask[:, part])
            torch.testing.assert_close(mine.k[mine.mask], all_heads.k[:, part][mine.mask])


def test_methods_of_the_list_are_among_them():
    names = {policy.name for policy in served() if parallel(policy)}
    assert names >= {"snapkv", "mixkv", "csp", "h2o", "knorm", "vnorm", "lookm", "pyramidkv"}
    assert not names & {"david", "random", "tova"}


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("david:budget=20%", "modality_fusion"),
        ("random:budget=20%", "random_score"),
        ("nacl:budget=20%", "top_and_drawn"),
        ("csp:budget=20%,head_mean=true", "head_mean"),
        ("elastic_cache:budget=20%,when=after_prefill", "head_mean"),
    ],
)
def test_others_are_refused_by_the_stage_that_looks_across_heads(spec, stage):
    policy = foveate.policy(spec)
    check_parallel(policy, 1, 4)
    with pytest.raises(UnsupportedPolicy, match=stage):
        check_parallel(policy, 2, 4)


@pytest.mark.parametrize("says", [True, False])
def test_a_stage_of_somebody_elses_is_served_in_parallel_if_it_says_so(says):
    class Theirs(KeyNorm):
        head_by_head = says

    policy = foveate.knorm(budget="20%").but(score=Theirs())
    if says:
        check_parallel(policy, 2, 4)
    else:
        with pytest.raises(UnsupportedPolicy, match="head_by_head = True"):
            check_parallel(policy, 2, 4)


def test_workers_that_would_share_a_head_are_refused():
    policy = foveate.policy("knorm:budget=20%")
    check_parallel(policy, 4, 4)
    with pytest.raises(UnsupportedEngine, match="tensor-parallel-size 4"):
        check_parallel(policy, 8, 4)
