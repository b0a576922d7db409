"""Methods whose profiles hold tensors keep what slow transcriptions of their equations keep."""

from __future__ import annotations

import math

import pytest
import torch

import foveate
from foveate.methods.expected_attention import StoredStatistics
from foveate.ops.rotation import halves, neighbours
from tests.literal.attention import top
from tests.methods.test_literal import BUDGET, PROMPTS, assert_kept
from tests.methods.visual import visual
from tests.profiles import saved_tensors
from tests.stages.layers import random_layer

every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
D = 8


@every_prompt
@pytest.mark.parametrize("recent", [0, 3])
def test_q_filters(tmp_path, prompt, recent):
    filters = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    path = saved_tensors(tmp_path, "q_filters", [{"filters": filters}])

    def literal(q, k, v, is_image):
        found = []
        for keys, direction in zip(k.double(), filters.double(), strict=True):
            t = len(keys)
            scores = [float(key @ direction) for key in keys[: t - recent]]
            found.append([*top(scores, BUDGET - recent), *range(t - recent, t)])
        return found

    policy = foveate.q_filters(budget=BUDGET, recent=recent, profile=str(path))
    assert_kept(visual(**prompt), policy, literal)


PAIRS = {
    "halves": halves(torch.tensor([1.0, 0.3, 0.1, 0.01])),
    "neighbours": neighbours(torch.tensor([1.0, 0.3, 0.1, 0.01])),
    "some channels": halves(torch.tensor([1.0, 0.1])),
    "none": halves(torch.zeros(0)),
}


def at(vector, position, rotation):
    """Turned, pair by pair."""
    out = vector.clone()
    for a, b, frequency in zip(*(t.tolist() for t in rotation), strict=True):
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        out[a], out[b] = vector[a] * cos - vector[b] * sin, vector[b] * cos + vector[a] * sin
    return out


@every_prompt
@pytest.mark.parametrize("rotation", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("covariance", [True, False])
def test_expected_attention_of_stored_queries(tmp_path, prompt, rotation, covariance):
    future, heads = 7, 2 * prompt.get("g", 1)
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(heads, D, generator=generator)
    roots = torch.randn(heads, D, D, generator=generator)
    covariances = roots @ roots.mT
    stored = {
        "mean": means,
        "covariance": covariances,
        "frequencies": rotation.frequencies,
        "pairs": torch.stack([rotation.first, rotation.second]),
    }
    path = saved_tensors(tmp_path, "expected_attention", [stored])

    def literal(q, k, v, is_image):
        t = k.shape[1]
        eye = torch.eye(D).double()
        turns = [torch.stack([at(row, t + i, rotation) for row in eye]).T for i in range(future)]
        turn = sum(turns) / future
        found, group = [], heads // 2
        for head in range(2):
            scores = torch.zeros(t - 2).double()
            for one in range(head * group, (head + 1) * group):
                mean, spread = turn @ means[one].double(), turn @ covariances[one].double() @ turn.T
                logits = []
                for key in k[head, 2:].double():
                    logit = mean @ key / math.sqrt(D)
                    logits.append(logit + covariance * (key @ spread @ key) / (2 * D))
                scores += torch.stack(logits).softmax(0) / group
            scores = (scores + 0.01) * v[head, 2:].double().norm(dim=-1)
            found.append([0, 1, *(2 + i for i in top(scores.tolist(), BUDGET - 2))])
        return found

    policy = foveate.expected_attention(
        budget=BUDGET,
        covariance=covariance,
        epsilon=0.01,
        sinks=2,
        profile=str(path),
        future=future,
    )
    assert_kept(visual(**prompt), policy, literal)
    assert policy.score.queries(100) == 0


def test_the_first_four_queries_of_a_prompt_are_not_measured():
    """As in the release of Expected Attention."""
    layer = random_layer((9,))
    sums = StoredStatistics().gather(layer, None)
    assert sums["count"] == 5
    total = layer.q[0, :, 4:].double().sum(1)
    assert torch.allclose(sums["total"].flatten(0, 1), total)
