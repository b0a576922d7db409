"""R-KV: against a literal reading, the authors' output, and while it decodes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.methods.rkv import redundancy
from tests.golden.vectors import load

from .visual import Visual, assert_keeps, visual


def literal(q, k, *, tokens, window, kernel, mix_lambda, threshold, newest):
    """The kept positions of every head of one row: q [hq, t, d], k [h, t, d]."""
    heads, t, d = k.shape
    group, found = q.shape[0] // heads, []
    for head in range(heads):
        keys = k[head].double()
        attention = [0.0] * (t - window)
        for i in range(t - window, t):
            logits = [
                max(float(q[head * group + g, i].double() @ key) for g in range(group))
                / math.sqrt(d)
                for key in keys[: t - window]
            ]
            paid = torch.tensor(logits).double().softmax(0).tolist()
            attention = [a + p / window for a, p in zip(attention, paid, strict=True)]
        reach = kernel // 2
        importance = [max(attention[max(0, i - reach) : i + reach + 1]) for i in range(t - window)]

        unit = [key / key.norm() for key in keys]
        cosine = [[float(a @ b) if a is not b else 0.0 for b in unit] for a in unit]
        for row in cosine:
            similar = [j for j in range(t) if row[j] > threshold]
            for j in similar[-newest:]:
                row[j] = 0.0
        mean = [sum(row[j] for row in cosine) / t for j in range(t)]
        repeated = torch.tensor(mean).double().softmax(0).tolist()
        score = [
            mix_lambda * importance[i] - (1 - mix_lambda) * repeated[i] for i in range(t - window)
        ]
        best = sorted(range(t - window), key=lambda i: (-score[i], i))[: tokens - window]
        found.append(sorted([*best, *range(t - window, t)]))
    return found


def repeating(lengths, *, seed=0, **shape):
    """Keys that resemble each other in groups, as an answer's do."""
    given = visual(lengths, seed=seed, **shape)
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for q, k, v in given.layers:
        b, h, n, d = k.shape
        centres = torch.randn(b, h, 6, d, generator=generator)
        which = torch.randint(6, (b, h, n, 1), generator=generator).expand_as(k)
        layers.append((q, centres.gather(2, which) + 0.4 * k, v))
    return Visual(layers, given.images)


PROMPTS = {
    "alone": {"lengths": [34]},
    "left-padded, grouped": {"lengths": [31, 9, 24], "g": 3},
}


@pytest.mark.parametrize("newest", [1, 3, 400])
@pytest.mark.parametrize("threshold", [0.1, 0.4, 0.9])
def test_redundancy_of_many_tokens_is_that_of_all_cosines(newest, threshold):
    """Of more tokens than are compared at a time, with padding, some alike and some like none."""
    given = repeating([300, 170], h=2, d=16, seed=3)
    k, valid = given.layers[0][1], (given.mask > 0)[:, None].expand(-1, 2, -1)
    alone = torch.randn(k.shape, generator=torch.Generator().manual_seed(4))
    k = torch.where(torch.arange(300)[:, None] % 3 == 0, alone, k)
    unit = k.double() / k.double().norm(dim=-1, keepdim=True) * valid[..., None]
    cosine = unit @ unit.mT
    cosine.diagonal(0, 2, 3).fill_(0.0)
    similar = cosine > threshold
    assert (cosine[cosine != 0] - threshold).abs().min() > 1e-6  # that float32 tells apart
    later = similar.flip(-1).cumsum(-1).flip(-1)
    mean = cosine.masked_fill(similar & (later <= newest), 0.0).sum(2)
    mean = mean / valid.sum(-1, keepdim=True)
    expected = mean.masked_fill(~valid, -torch.inf).softmax(-1)
    assert_close(redundancy(k, valid, threshold, newest).double(), expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize("newest", [1, 3])
@pytest.mark.parametrize("mix_lambda", [0.0, 0.1, 1.0])
def test_what_is_kept_is_what_a_literal_reading_keeps(prompt, newest, mix_lambda):
    given = repeating(**prompt)
    settings = {"window": 5, "kernel": 3, "mix_lambda": mix_lambda, "newest": newest}
    policy = foveate.rkv(budget=16, threshold=0.4, **settings)
    assert_keeps(
        policy,
        given,
        lambda layer, row, tokens: literal(
            *given.alone(layer, row)[:2], tokens=tokens, threshold=0.4, **settings
        ),
    )


@pytest.mark.parametrize("name", ["mha", "gqa", "importance"])
def test_the_release_keeps_the_same(name):
    golden, args = load(f"rkv_{name}")
    k, v = golden["key"], golden["value"]
    everything = torch.ones(k.shape[:3], dtype=torch.bool)
    ours = redundancy(k, everything, 0.5, 1)
    assert_close(ours[0], golden["redundancy"], rtol=1e-5, atol=1e-7)
    policy = foveate.rkv(
        budget=args["budget"],
        window=args["window_size"],
        kernel=args["kernel_size"],
        mix_lambda=args["mix_lambda"],
    )
    before = (0, 0, k.shape[2] - args["window_size"], 0)  # the release holds the last alone
    queries = torch.nn.functional.pad(golden["query"], before)
    (kept,) = foveate.compress_tensors(policy, [(queries, k, v)])
    for head, theirs in enumerate(golden["kept_idx"].tolist()):
        assert kept.positions(0, head).tolist() == theirs


def test_of_similar_tokens_the_latest_are_not_redundant():
    k = torch.eye(4)[[0, 1, 0, 2, 0, 3]][None, None]
    everything = torch.ones(1, 1, 6, dtype=torch.bool)
    first, second, third = redundancy(k, everything, 0.5, 1)[0, 0, ::2].tolist()
    assert first > second > third
    assert redundancy(k, everything, 0.5, 2)[0, 0].unique().numel() == 1


@pytest.mark.parametrize("number", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_at_padding_does_not_matter(number):
    given = repeating([30, 20], g=2)
    padding = given.mask[:, None, :, None] == 0
    layers = [tuple(x.masked_fill(padding, number) for x in layer) for layer in given.layers]
    policy = foveate.rkv(budget=12, window=5)
    (ours,), (theirs,) = Visual(layers, given.images).keeps(policy), given.keeps(policy)
    assert torch.equal(ours.mask, theirs.mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_as_the_same_numbers_in_float32(dtype):
    given, policy = repeating([120], h=3, g=2, d=32), foveate.rkv(budget=40)
    half = [tuple(x.to(dtype) for x in layer) for layer in given.layers]
    full = [tuple(x.float() for x in layer) for layer in half]
    (ours,), (theirs,) = (Visual(x, given.images).keeps(policy) for x in (half, full))
    assert torch.equal(ours.scores, theirs.scores)


def test_over_another_score_it_takes_that_for_importance():
    both = foveate.policy("snapkv+rkv:budget=16,window=4,every=2")
    assert both.score.of == foveate.snapkv(budget=16, window=4).score
    assert both.when.every == 2
