"""Answers of tiny random models, compared on any CPU.

Their two best logits may be nearer to each other than what another CPU, or another way to compute
the same, rounds differently; the answer is then another from there on, and nothing is wrong. So
both sides are given the same tokens (`DRAWN`, `Following`), and the logits of every step are
compared; or, where a program chooses its tokens itself, those that are `certain`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from tests.jitter import WIDER

LEAD = 1e-4 + 2 * WIDER
"""Of logits: by how much the best has to be ahead of the next, to be the best on any CPU."""

WORDS = slice(20, 80)  # ids of text in every stand-in; others are images and the like
LAST = 512  # rows of the table; ids beyond share them


class Drawn(LogitsProcessor):
    """For ``generate``: the scores of a token are drawn, and go by the token before it alone. So
    greedy answers, beams and samples are the same on both sides, and of drafts some are right.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        exact = {"dtype": torch.float32, "device": "cpu"}  # whatever the process's defaults are
        drawn = torch.full((LAST, scores.shape[-1]), -torch.inf, **exact)
        words = drawn[:, WORDS]
        words.copy_(torch.randn(words.shape, generator=torch.Generator().manual_seed(11), **exact))
        before = input_ids[:, -1] if input_ids.shape[1] else input_ids.new_zeros(len(scores))
        return drawn[before.cpu() % LAST].to(scores)


DRAWN = LogitsProcessorList([Drawn()])
"""For ``generate``'s ``logits_processor``. The ``logits`` that it returns are the model's."""


class Following(LogitsProcessor):
    """For ``generate``, of one prompt [1, start]: these tokens, whatever the logits say."""

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        self.tokens, self.start = tokens, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        told = torch.full_like(scores, -torch.inf)
        told[:, self.tokens[input_ids.shape[1] - self.start]] = 0.0
        return told


def certain(logits: Sequence[Tensor] | Tensor, lead: float = LEAD) -> int:
    """How many of an answer's first tokens are certain, from its logits or log-probabilities, one
    [vocabulary] or [1, vocabulary] for each token: up to the first whose best is not that far
    ahead of the next.
    """
    for step, row in enumerate(logits):
        best, second = row.flatten().float().topk(2).values.tolist()
        if best - second < lead:
            return step
    return len(logits)


def same_answer(ours: Sequence[int], theirs: Sequence[int], logits: Sequence[Tensor]) -> None:
    """Both answers have the same length, and the same tokens as far as they are certain by the
    logits of one of them. The step that is not is as good a choice as the other.
    """
    sure = certain(logits)
    assert list(ours)[:sure] == list(theirs)[:sure]
    assert len(ours) == len(theirs)
