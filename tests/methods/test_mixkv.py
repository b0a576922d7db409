"""MixKV scores and keeps what its equations, transcribed number by number, and its code do."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidParameter
from foveate.methods.mixkv import MixDiversity, diversity, redundancy
from foveate.ops.mix_statistics import mix_statistics
from foveate.profiles.profile import Profile
from foveate.stages.budget import Uniform
from foveate.stages.score import ColumnSums, KeyNorm
from foveate.stages.select import TopK
from tests.golden.vectors import papers
from tests.literal import lookm
from tests.literal import mixkv as literal

from .extended import mixed, window_means
from .visual import assert_keeps, recorded, sets, visual

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
GOLDEN = ["mixkv_official_H4kv4_W8_B32_s0", "mixkv_official_H8kv2_W8_B32_s0"]

# what is recorded as -> the options, and what turns our scores into theirs
RECORDED = {
    "attn": ({"mix": "importance", "intrinsic": "none"}, 1),
    "vnorm": ({"mix": "importance"}, 1),
    "keydiff": ({"mix": "diversity"}, 1),
    "headwisemixkv": ({}, 1),
    "mixkv": ({"mix": "sum"}, 0.33),
}
OF_THE_PAPER = {"pool": "none", "diversity_scale": "importance"}
PRINTED = {
    "paperA_full_domain": {**OF_THE_PAPER, "normalise_over": "all"},
    "paperB_prefix_domain": {**OF_THE_PAPER, "normalise_over": "prefix"},
}


def of_golden(file, **options):
    given, settings = papers(file)
    policy = foveate.mixkv(
        budget=int(settings["budget_incl_window"]),
        window=int(settings["window"]),
        kernel=int(settings["kernel"]),
        **options,
    )
    (kept,) = recorded([(given["q"], given["k"], given["v"])], given["image_mask"]).keeps(policy)
    return given, kept


def assert_scores(kept, expected):
    before = expected.shape[1]
    assert_close(kept.scores[0, :, :before], expected, **TOLERANCE)
    assert bool((kept.scores[..., before:] == math.inf).all())


def in_order(positions):
    return [sorted(row) for row in positions.tolist()]


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("file", GOLDEN)
def test_scores_and_pairs_are_those_of_the_release(file, name):
    options, factor = RECORDED[name]
    given, kept = of_golden(file, **options)
    if factor != 1:
        kept = replace(kept, scores=kept.scores * factor)
    assert_scores(kept, given[f"{name}.score"])
    positions = given[f"{name}.kept_in_cache_order"]
    assert sets(kept) == in_order(positions)
    for head, order in enumerate(positions.argsort(-1)):
        assert torch.equal(kept.keys(0, head), given[f"{name}.K"][head, order])
        assert torch.equal(kept.values(0, head), given[f"{name}.V"][head, order])


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("file", GOLDEN)
def test_scores_and_sets_are_what_the_paper_prints(file, name):
    given, kept = of_golden(file, **PRINTED[name])
    expected = given[f"{name}.score"]
    assert_scores(kept, expected)
    before = [[i for i in head if i < expected.shape[1]] for head in sets(kept)]
    assert before == in_order(given[f"{name}.kept_sorted"])


@pytest.mark.parametrize("file", GOLDEN)
def test_redundancy_is_what_the_release_measures(file):
    given, _ = papers(file)
    k = given["k"]
    measured = redundancy(k, torch.ones(k.shape[:3], dtype=torch.bool))
    assert_close(measured[0], given["redundancy_online"], **TOLERANCE)


@pytest.mark.parametrize("file", GOLDEN)
def test_over_adakv_heads_keep_what_the_release_keeps(file):
    """Their numbers follow from the pooled attention, and what fills them from the mixed score."""
    given, settings = papers(file)
    budget, window, kernel = (settings[x] for x in ("budget_incl_window", "window", "kernel"))
    spec = f"mixkv(window={window},kernel={kernel})+adakv(normalised=true,as_released=true)"
    prompt = recorded([(given["q"], given["k"], given["v"])], given["image_mask"])
    policy = foveate.policy(f"{spec}:budget={budget}")
    (kept,) = prompt.keeps(policy)
    assert kept.counts[0].tolist() == given["adakv_headwise.head_lens"].tolist()
    assert torch.equal(kept.mask[0], given["adakv_headwise.keep"].bool())
    (mixed,) = prompt.keeps(policy.but(by="score"))
    assert kept.counts.tolist() != mixed.counts.tolist()


def table_in(path, rows):
    profile = Profile(
        method="mixkv", model="none", layers=len(rows), samples=1, budget="", by_layer=rows
    )
    return str(profile.save(path / "redundancies.json"))


def test_with_a_table_of_redundancies_the_sets_are_those_of_the_release(tmp_path):
    given, _ = papers(GOLDEN[0])
    table = table_in(tmp_path, [given["offline_headwise.redundancy"].tolist()])
    _, kept = of_golden(GOLDEN[0], profile=table)
    assert sets(kept) == in_order(given["offline_headwise.kept_in_cache_order"])


# ------------------------------------------------------------------------------- random prompts

WINDOW = 6
OPTIONS = {
    "default": {},
    "key norms": {"intrinsic": "key"},
    "no norms": {"intrinsic": "none"},
    "plain sum": {"mix": "sum"},
    "importance": {"mix": "importance"},
    "importance of key norms": {"mix": "importance", "intrinsic": "key"},
    "diversity": {"mix": "diversity"},
    "diversity scaled to importance": {"diversity_scale": "importance"},
    "sum scaled to importance": {"mix": "sum", "diversity_scale": "importance"},
    "wide pooling": {"kernel": 7},
    "not pooled": {"pool": "none"},
    "over all": {"pool": "none", "normalise_over": "all"},
    "over all, key norms": {"pool": "none", "normalise_over": "all", "intrinsic": "key"},
    "the paper's equations": {**OF_THE_PAPER, "normalise_over": "all"},
}
SHAPES = [(2, 1), (2, 2), (1, 3)]


def literal_scores(given, layer, row, options, table=None):
    q, k, v = given.alone(layer, row)
    named = {"pooled": options.get("pool") != "none"}
    if options.get("intrinsic") == "none":
        named["intrinsic"] = None
    rest = {name: x for name, x in options.items() if name != "pool"}
    return literal.scores(q, k, v, WINDOW, **{**rest, **named}, table=table)


def assert_as_literal(given, budget, options, tables=None, profile=None):
    policy = foveate.mixkv(budget=budget, window=WINDOW, profile=profile, **options)

    def expected(layer, row, tokens):
        table = None if tables is None else tables[layer]
        scores = literal_scores(given, layer, row, options, table)
        length, pad = given.lengths[row], given.pads[row]
        ours = given.keeps(policy)[layer].scores[row, :, pad : pad + length - WINDOW]
        assert_close(ours, scores, rtol=1e-4, atol=1e-5, check_dtype=False)
        return literal.kept(scores, length, WINDOW, tokens)

    assert_keeps(policy, given, expected)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("h", "g"), SHAPES)
def test_every_option_is_its_equation(h, g, options):
    assert_as_literal(visual([29], h=h, g=g, seed=h + g), 13, options)


@pytest.mark.parametrize("budget", [WINDOW, 7, 12, 0.5, 27, 28])
def test_every_budget_keeps_the_window_and_the_best(budget):
    assert_as_literal(visual([28], g=2, depth=2, seed=5), budget, {})


@pytest.mark.parametrize("layout", ["text", "image", "two images"])
def test_what_is_visual_makes_no_difference(layout):
    given = visual([26], layout, seed=2)
    assert_as_literal(given, 11, {})
    policy = foveate.mixkv(budget=11, window=WINDOW)
    (kept,) = given.keeps(policy)
    (blind,) = foveate.compress_tensors(policy, given.layers)
    assert torch.equal(kept.mask, blind.mask)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_padded_row_is_scored_as_it_is_alone(options):
    assert_as_literal(visual([31, 24], g=2, seed=7), 12, options)


@pytest.mark.parametrize("short", [WINDOW - 1, WINDOW, WINDOW + 1, 12])
@pytest.mark.parametrize("options", [{}, OPTIONS["the paper's equations"]], ids=["code", "paper"])
def test_a_row_that_fits_the_budget_does_not_disturb_a_longer_one(short, options):
    assert_as_literal(visual([27, short], seed=8), 12, options)


def test_a_profile_replaces_the_redundancy_of_each_layer_and_head(tmp_path):
    tables = [[0.9, 0.1], [0.0, 1.0]]
    profile = table_in(tmp_path, tables)
    assert_as_literal(visual([30, 22], depth=2, seed=9), 13, {}, tables, profile)


def test_keys_that_point_apart_have_no_redundancy_unless_it_is_as_printed():
    k = torch.eye(4)[[0, 0, 0, 1, 1, 1]] * torch.tensor([1, -1, 2, 1, -1, -1])[:, None]
    everything = torch.ones(1, 1, 6, dtype=torch.bool)
    below = literal.redundancy(k[None]).item()
    assert below < 0
    assert redundancy(k[None, None], everything).item() == pytest.approx(below)
    given = visual([6], "text", h=1, d=4)
    (q, _, v), *_ = given.layers
    apart = given._replace(layers=[(q, k[None, None], v)])
    for clamped, r in ((True, 0.0), (False, below)):
        (one,) = apart.scored(foveate.mixkv(budget=4, window=2, clamped=clamped))
        assert one.scores.notes["redundancy"].item() == pytest.approx(r)
        expected = literal.scores(q[0], k[None], v[0], 2, clamped=clamped)
        assert_close(one.raw[0, :, :4], expected, **TOLERANCE)


def test_a_profile_has_nothing_to_clamp(tmp_path):
    profile = table_in(tmp_path, [[0.5]])
    with pytest.raises(InvalidParameter, match="clamped=False"):
        foveate.mixkv(budget=12, profile=profile, clamped=False)


# ---------------------------------------------------------- another importance than the default


def maximum_pool(row):
    return [max(row[max(0, i - 2) : i + 3]) for i in range(len(row))]


def average_pool(row):
    return literal.average_pool(row, 5)


def reduced(means, group):
    return means.amax(1) if group == "max" else means.mean(1)


@pytest.mark.parametrize("group", ["mean", "max"])
@pytest.mark.parametrize("pool", ["avg", "max"])
def test_it_mixes_what_the_pooling_and_the_reduction_make(pool, group):
    given = visual([30, 23], g=2, seed=10)
    pooled = maximum_pool if pool == "max" else average_pool

    def expected(layer, row, tokens):
        q, k, v = given.alone(layer, row)
        before = reduced(window_means(q, k, WINDOW), group)[:, :-WINDOW]
        scores = mixed([pooled(row) for row in before.tolist()], k, v)
        return literal.kept(scores, k.shape[1], WINDOW, tokens)

    policy = foveate.mixkv(budget=13, window=WINDOW, pool=pool, group=group)
    assert_keeps(policy, given, expected)


def test_over_all_the_window_is_paid_the_maximum_over_the_group_as_the_rest_is():
    """Means and minima over all tokens compare like with like."""
    given = visual([30], g=2, seed=11)
    q, k, v = given.alone(0, 0)
    scores = mixed(reduced(window_means(q, k, WINDOW), "max").tolist(), k, v)[:, :-WINDOW]
    policy = foveate.mixkv(budget=13, window=WINDOW, group="max", pool="none", normalise_over="all")
    (kept,) = given.keeps(policy)
    assert_close(kept.scores[0, :, :-WINDOW], scores, rtol=1e-4, atol=1e-6, check_dtype=False)


def wrapping(score, **options):
    return foveate.Policy(
        score=MixDiversity(of=score, window=WINDOW, **options),
        budget=Uniform(amount=12),
        select=TopK(recent=WINDOW),
    )


def test_it_mixes_the_attention_of_all_queries_as_well():
    given = visual([30, 23], g=2, seed=12)

    def expected(layer, row, tokens):
        q, k, v = given.alone(layer, row)
        sums = lookm.importance(q, k)[:, :-WINDOW]
        return literal.kept(mixed(sums.tolist(), k, v), k.shape[1], WINDOW, tokens)

    assert_keeps(wrapping(ColumnSums()), given, expected)


def test_an_importance_below_zero_is_mixed_from_its_minimum_on():
    given = visual([30, 23], seed=13)

    def expected(layer, row, tokens):
        _, k, v = given.alone(layer, row)
        norms = k.double().norm(dim=-1)[:, :-WINDOW]
        above = norms.amax(-1, keepdim=True) - norms
        return literal.kept(mixed(above.tolist(), k, v), k.shape[1], WINDOW, tokens)

    assert_keeps(wrapping(KeyNorm()), given, expected)


# ------------------------------------------------------------------------------------ properties


def assert_same_sets(policy, other, given):
    for ours, theirs in zip(given.keeps(policy), given.keeps(other), strict=True):
        assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("pool", ["avg", "max", "none"])
@pytest.mark.parametrize("group", ["mean", "max"])
def test_without_redundancy_and_norms_it_keeps_what_snapkv_keeps(tmp_path, pool, group):
    given = visual([40, 31], g=2, depth=2, seed=14)
    shared = {"budget": 14, "window": WINDOW, "pool": pool, "group": group}
    snapkv = foveate.snapkv(**shared)
    nothing = table_in(tmp_path, [[0.0, 0.0]] * 2)
    assert_same_sets(foveate.mixkv(**shared, profile=nothing, intrinsic="none"), snapkv, given)
    assert_same_sets(foveate.mixkv(**shared, mix="importance", intrinsic="none"), snapkv, given)


def test_with_a_redundancy_of_one_it_keeps_the_most_diverse(tmp_path):
    given = visual([40], depth=1, seed=15)
    full = foveate.mixkv(budget=14, window=WINDOW, profile=table_in(tmp_path, [[1.0, 1.0]]))
    assert_same_sets(full, foveate.mixkv(budget=14, window=WINDOW, mix="diversity"), given)


def test_copies_of_one_key_are_as_redundant_as_can_be_and_random_keys_are_not():
    (_, k, _), *_ = visual([200], d=64, seed=16).layers
    everything = torch.ones(1, 2, 200, dtype=torch.bool)
    assert_close(redundancy(k[:, :, :1].expand_as(k), everything), torch.ones(1, 2))
    assert bool((redundancy(k, everything) < 0.02).all())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"intrinsic": "values"}, "intrinsic='values'"),
        ({"mix": "product"}, "mix='product'"),
        ({"diversity_scale": "paper"}, "diversity_scale='paper'"),
        ({"normalise_over": "window"}, "normalise_over='window'"),
        ({"window": 0}, "window=0"),
    ],
)
def test_what_it_does_not_know_is_refused_by_value(arguments, text):
    with pytest.raises(InvalidParameter, match=text):
        foveate.mixkv(budget=64, **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_statistics_are_the_equations(dtype):
    k = torch.randn(3, 2, 17, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    valid = (torch.arange(17) >= 3 * torch.arange(3)[:, None, None]).expand(3, 2, 17)
    k[1, :, :3] = torch.inf  # padding
    k[0, 0, 4] = 0.0
    fused = mix_statistics(k, k, valid)
    assert_close(fused.redundancy, redundancy(k, valid))
    assert_close(fused.diversity.masked_fill(~valid, 0.0), diversity(k, valid))
