"""Tiers of layers with different budgets: how they are cut, and what they keep; without vLLM."""

import math
import pickle
from fractions import Fraction

import pytest
import torch

import foveate
from foveate.errors import ProfileMismatch, UnsupportedPolicy
from foveate.vllm.plans.tiers import cut
from foveate.vllm.plans.tiers import rooms_of as all_rooms_of
from tests.profiles import saved


def groups_of_vllm(sizes):
    """How many groups vLLM makes of these numbers of equal layers, and the pages of a block: the
    rule of its ``_get_kv_cache_groups_uniform_page_size``.
    """
    size = max(sizes) if max(sizes) < min(sizes) * 1.5 else min(sizes)
    return sum(math.ceil(n / size) for n in sizes), size


@pytest.mark.parametrize("most", [1, 2, 5, 8, 12])
def test_a_tier_is_a_group_of_vllms_and_few_pages_are_unused(most):
    for layers in range(1, 129):
        parts = cut(list(range(layers)), most)
        assert [place for part in parts for place in part] == list(range(layers))
        assert len(parts) <= most
        groups, size = groups_of_vllm([len(part) for part in parts])
        assert groups == len(parts)
        unused = groups * size - layers
        assert unused < len(parts)
        for number in range(1, min(most, layers) + 1):  # every even cut in reach
            if layers % number == 0 and 2 * number >= min(most, layers):
                assert unused == 0
                assert len(parts) >= number


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        (28, [4] * 7),
        (32, [4] * 8),
        (36, [6] * 6),
        (40, [5] * 8),
        (80, [10] * 8),
        (24, [3] * 8),
        (26, [4, 4, 4, 4, 4, 3, 3]),
        (31, [4] * 7 + [3]),
        (4, [1] * 4),
        (9, [3] * 3),
        (1, [1]),
    ],
)
def test_tiers_of_common_depths(layers, sizes):
    assert [len(part) for part in cut(list(range(layers)), 8)] == sizes


def rooms_of(policy, depth, **options):
    """Of a policy alone."""
    return [room for (room,) in all_rooms_of([policy], depth, 1, **options)]


def asked(policy, prompt, depth):
    """What the budget itself gives each layer, by the tensors of a random prompt."""
    layers = [tuple(torch.randn(1, 1, prompt, 4) for _ in "qkv") for _ in range(depth)]
    kept = foveate.compress_tensors(policy, layers)
    return [int(one.counts[0, 0]) for one in kept]


def prefix(folder, ratios, budget):
    path = saved(folder, "prefixkv", ratios, budget=budget)
    return foveate.policy(f"prefixkv:budget={budget},profile={path},when=after_prefill")


def pyramid(**options):
    return foveate.pyramidkv(**{"window": 8, "budget": "20%"} | options)


@pytest.mark.parametrize(
    "policy",
    [
        pyramid(),
        pyramid(budget=40, beta=3),
        pyramid(budget="60%"),
        pyramid(as_released=True),
        foveate.policy("h2o+pyramidkv.budget:budget=30%"),  # protects a share of the budget
    ],
    ids=str,
)
def test_one_layer_a_tier_keeps_what_the_budget_gives(policy):
    depth = 6
    for prompt in (41, 60, 61, 77, 199):
        rooms = rooms_of(policy, depth, longest=512, tiers=depth)
        assert len(set(rooms)) == depth
        assert [min(prompt, room.target(prompt)) for room in rooms] == asked(policy, prompt, depth)


def test_prompts_with_a_budget_below_what_is_protected_keep_just_that():
    for prompt in range(1, 40):
        for room in rooms_of(pyramid(), 6, longest=512):
            assert min(prompt, room.target(prompt)) == min(prompt, 8)


def test_one_layer_a_tier_keeps_what_a_profile_gives(tmp_path):
    policy = prefix(tmp_path, [0.5, 0.031, 0.1, 0.2, 0.024], "20%")
    for prompt in (12, 60, 199, 300):
        rooms = rooms_of(policy, 5, longest=512)
        assert [room.target(prompt) for room in rooms] == asked(policy, prompt, 5)


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_a_tier_keeps_the_mean_of_its_layers_rounded_up(most):
    policy, depth = pyramid(budget="15%"), 12
    for prompt in (60, 200, 333):
        each = asked(policy, prompt, depth)
        rooms = rooms_of(policy, depth, longest=512, tiers=most)
        assert len(set(rooms)) <= most
        for room in set(rooms):
            mine = [each[place] for place in range(depth) if rooms[place] == room]
            assert room.target(prompt) == math.ceil(Fraction(sum(mine), len(mine)))
        kept = sum(room.target(prompt) for room in rooms)
        assert 0 <= kept - sum(each) < depth
        in_blocks = sum(room.kept(prompt, 32) for room in rooms)
        assert 0 <= in_blocks - kept < depth * 32


def test_layers_that_keep_alike_share_a_tier_wherever_they_stand(tmp_path):
    policy = prefix(tmp_path, [0.1, 0.4, 0.1, 0.2, 0.4, 0.2], "20%")
    rooms = rooms_of(policy, 6, longest=512, tiers=3)
    assert rooms[0] == rooms[2] != rooms[1] == rooms[4] != rooms[3] == rooms[5]


def test_an_even_budget_has_one_room():
    rooms = rooms_of(foveate.policy("snapkv:budget=1%,window=32"), 6, longest=512)
    assert len(set(rooms)) == 1
    assert rooms[0].target(100) == 32  # what is protected


def test_rooms_of_tiers_travel_between_processes(tmp_path):
    for policy in (pyramid(), prefix(tmp_path, [0.1, 0.3], "20%")):
        rooms = rooms_of(policy, 2, longest=512)
        assert pickle.loads(pickle.dumps(rooms)) == rooms


def headed(folder, scores, budget="25%"):
    path = saved(folder, "headkv", scores)
    return foveate.policy(f"headkv:budget={budget},window=8,profile={path}")


def test_one_head_a_tier_keeps_what_a_profile_gives(tmp_path):
    scores = [[0.2, 3.0], [1.0, 0.1], [2.0, 0.4]]
    policy = headed(tmp_path, scores)
    for prompt in (41, 60, 199):
        rooms = [room for (room,) in all_rooms_of([policy], 3, 2, longest=512, tiers=6)]
        assert len(set(rooms)) == 6
        layers = [tuple(torch.randn(1, 2, prompt, 4) for _ in "qkv") for _ in scores]
        kept = foveate.compress_tensors(policy, layers)
        asked = [int(count) for one in kept for count in one.counts[0]]
        assert [min(prompt, room.target(prompt)) for room in rooms] == asked


def test_strong_heads_of_all_layers_share_a_tier(tmp_path):
    policy = headed(tmp_path, [[0.1, 3.0], [3.0, 0.1]])
    rooms = [room for (room,) in all_rooms_of([policy], 2, 2, longest=512, tiers=2)]
    assert rooms[1] == rooms[2] != rooms[0] == rooms[3]
    assert pickle.loads(pickle.dumps(rooms)) == rooms


def test_a_profile_of_other_heads_is_refused(tmp_path):
    with pytest.raises(ProfileMismatch, match="2 numbers for layer 0, which has 4 KV heads"):
        all_rooms_of([headed(tmp_path, [[0.1, 3.0]])], 1, 4, longest=512)


def test_policies_of_one_engine_differ_alike(tmp_path):
    """Uniform ones go with any; two that give layers different numbers must do so in one way."""
    even, uneven = foveate.policy("snapkv:budget=20%"), pyramid()
    rooms = all_rooms_of([even, uneven, pyramid(budget="50%")], 4, 2, longest=512)
    assert len(rooms) == 4
    assert all(room == rooms[0][0] for room, *_ in rooms)
    assert rooms[0][2].target(300) > rooms[0][1].target(300) > rooms[3][1].target(300)
    with pytest.raises(UnsupportedPolicy, match="Start an engine for each"):
        all_rooms_of([uneven, pyramid(beta=3)], 4, 2, longest=512)
    with pytest.raises(UnsupportedPolicy, match="Start an engine for each"):
        all_rooms_of([uneven, headed(tmp_path, [[1.0, 2.0]] * 4)], 4, 2, longest=512)
