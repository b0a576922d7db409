"""A long answer does not grow the cache beyond what the policy allows."""

from contextlib import contextmanager

import pytest
import torch

import foveate
from foveate.cache.pairs import GROWTH
from foveate.hf.model.internals import CACHE
from tests import zoo

PROMPT, LONG, SHORT, VERY_LONG = 60, 240, 120, 1000


@contextmanager
def watched(model):
    """Pairs of every layer [b, h] and bytes of all of them, after each pass."""
    seen = []

    def after(module, args, kwargs, output):
        layers = kwargs[CACHE].layers
        seen.append(([layer.pairs.counts for layer in layers], sum(x.nbytes for x in layers)))

    hook = model.register_forward_hook(after, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def answer(spec, tokens, vision=False):
    """What a cache held after each of an answer's tokens, and bytes of one pair."""
    family = "llava" if vision else "llama"
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(PROMPT,))
    with foveate.compress(model, spec), watched(model) as seen:
        out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    assert out.shape[1] == PROMPT + tokens
    config = model.config.get_text_config()
    pair = 2 * 4 * config.head_dim
    return seen, pair


@pytest.mark.parametrize(
    ("spec", "tokens", "vision"),
    [
        ("h2o:budget=50%,when=over_budget(every=8)", LONG, False),
        pytest.param(
            "h2o:budget=50%,when=over_budget(every=8)", VERY_LONG, False, marks=pytest.mark.slow
        ),
        ("csp:budget=30,when=over_budget(every=16)", 2 * SHORT, True),
        ("mixkv:budget=30,window=8,when=over_budget", SHORT, True),
        *(
            pytest.param(
                f"{method}:budget=30,when=over_budget", SHORT, True, marks=pytest.mark.slow
            )
            for method in ("h2o", "csp", "david", "lookm")
        ),
    ],
)
def test_over_budget_holds_the_prompts_budget_throughout_the_answer(spec, tokens, vision):
    seen, pair = answer(spec, tokens, vision)
    every = foveate.policy(spec).when.every
    for counts, _ in seen:
        assert all(bool((count < 30 + every).all()) for count in counts)
    assert all(bool((count >= 30).all()) for count in seen[-1][0])
    early, late = (max(size for _, size in part) for part in (seen[:60], seen[-60:]))
    assert late <= early
    heads = sum(count.numel() for count in seen[0][0])
    # columns, running sums and the window's queries are counted too
    assert late <= heads * pair * 3 * (30 + GROWTH)


@pytest.mark.parametrize(
    ("spec", "every"),
    [
        ("h2o:budget=40%,recent=1,when=over_budget(growing=true)", 1),
        ("snapkv:budget=40%,window=4,when=over_budget(growing=true,every=5)", 5),
    ],
)
def test_a_growing_budget_is_its_share_of_all_tokens_seen(spec, every):
    seen, _ = answer(spec, SHORT // 2)
    for step, (counts, _) in enumerate(seen):
        share = (PROMPT + step) * 2 // 5
        assert all(bool(((count >= share) & (count < share + every)).all()) for count in counts)


def test_the_local_baseline_holds_the_sink_and_the_last_of_the_growing_sequence():
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(PROMPT,))
    spec = "streaming_llm:budget=25%,sinks=1,when=over_budget(growing=true)"
    with foveate.compress(model, spec) as session:
        model.generate(**inputs, max_new_tokens=18, do_sample=False, eos_token_id=None)
    seen = PROMPT + 17  # the last token has not been read
    for layer in session.cache.layers:
        expected = [0, *range(seen - seen // 4 + 1, seen)]
        assert layer.pairs.columns.unique().tolist() == expected


@pytest.mark.parametrize("spec", ["pyramidkv:budget=30,window=8", "fastv:budget=30"])
def test_a_layer_with_a_budget_of_its_own_holds_it_throughout_the_answer(spec):
    seen, _ = answer(f"{spec},when=over_budget(every=4)", SHORT // 2, vision=True)
    first = [int(count.sum()) for count in seen[0][0]]
    assert len(set(first)) > 1  # layers differ
    for counts, _ in seen:
        for held, count in zip(first, counts, strict=True):
            assert held <= int(count.sum()) < held + 4 * count.numel()


@pytest.mark.parametrize("spec", ["prefixkv:budget=50%", "prefixkv:budget=50%,counted_from=newest"])
def test_prefixkv_holds_every_layers_share_of_the_growing_sequence(spec):
    seen, _ = answer(spec, LONG if spec == "prefixkv:budget=50%" else SHORT)
    first = [count.double() / PROMPT for count in seen[0][0]]
    assert len({float(ratio[0, 0]) for ratio in first}) > 1  # layers differ
    for step, (counts, _) in enumerate(seen):
        for ratio, count in zip(first, counts, strict=True):
            share = ratio * (PROMPT + step)
            assert bool((count >= share - 1e-9).all())
            assert bool((count < share + 1).all())


def test_lists_that_do_not_fill_the_budget_prune_when_the_cache_outgrows_it():
    """CSP, Algorithm 1: as long as there is room, an answer's pairs stay."""
    seen, _ = answer("csp:budget=30,combine=and,fill=false,when=over_budget", SHORT // 2, True)
    totals = [sum(int(count.sum()) for count in counts) for counts, _ in seen]
    heads = sum(count.numel() for count in seen[0][0])
    assert totals[0] < 30 * heads
    assert totals[1] == totals[0] + heads
    assert all(bool((count <= 30).all()) for counts, _ in seen for count in counts)
    assert min(totals[2:]) < max(totals)


def test_without_a_decode_rule_the_answer_is_kept_whole():
    seen, _ = answer("h2o:budget=30", SHORT)
    counts, _ = seen[-1]
    assert [set(count.flatten().tolist()) for count in counts] == [{30 + SHORT - 1}] * len(counts)


@pytest.mark.parametrize("lengths", [(23, 60)])
def test_rows_of_different_lengths_decode_each_at_its_own_share(lengths):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=lengths)
    with foveate.compress(model, "prefixkv:budget=50%"), watched(model) as seen:
        model.generate(**inputs, max_new_tokens=40, do_sample=False, eos_token_id=None)
    ratios = [count.double() / torch.tensor(lengths)[:, None] for count in seen[0][0]]
    for step, (counts, _) in enumerate(seen):
        for ratio, count in zip(ratios, counts, strict=True):
            share = ratio * (torch.tensor(lengths)[:, None] + step)
            assert bool(((count >= share - 1e-9) & (count < share + 1)).all())
