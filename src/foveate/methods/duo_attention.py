"""DuoAttention: the whole prompt in retrieval heads, sinks and recent tokens in all others.

``profile`` holds the heads' scores, which the authors train for each model and publish as
``full_attention_heads.tsv``: ``foveate.import_head_scores(model, "duo_attention", FILE)`` reads
them. The budget decides how many heads retrieve. Every head keeps ``sinks + recent`` tokens; then
the best heads are filled with the whole prompt, one after the other. In a prompt of n tokens the
share (budget - sinks - recent) / (n - sinks - recent) of the heads retrieves.

Differences from the authors' code:

* The threshold follows from the budget.
* The last head to be filled keeps as many of the most recent tokens as the budget still allows.
* Of equal scores the earlier layer and head comes first (the authors draw at random).
* The published scores were trained with 128 sinks and 256 recent tokens, which many budgets do not
  hold; the defaults here are smaller.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.data.texts import read_text
from foveate.errors import InvalidInput
from foveate.policies.heads import HEAD_FILES, HeadFile
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.stages import Recency, TopK
from foveate.stages.budget.bases import Rule
from foveate.stages.budget.head_table import ByHeadScores, Scores


@stage("best_heads")
class BestHeads(ByHeadScores):
    """Budget that gives the whole prompt to the best heads, protected tokens to the others.

    Heads are filled in the order of their scores until the budget is used up. ``profile`` is a file
    of one score for every layer and KV head, of the method named ``of``; of equal scores the
    earlier head comes first.

    Source: DuoAttention (arXiv:2410.10819), and its release.
    """

    of: str = "duo_attention"

    def rule(self, scores: Scores) -> Rule:
        return Filled(scores)


class Filled(NamedTuple):
    """Rule of :class:`BestHeads` for one table of head scores; hashable."""

    scores: Scores

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each KV head's tokens for a prompt of ``length``, ``tokens`` on average."""
        return filled(self.scores, tokens, protected, length)


@lru_cache(maxsize=256)
def filled(scores: Scores, tokens: int, protected: int, length: int) -> tuple[int, ...]:
    """Return ``length`` for the best heads, ``protected`` for the others, the rest for one."""
    heads = [score for row in scores for score in row]
    counts = [min(protected, length)] * len(heads)
    left = tokens * len(heads) - sum(counts)
    for head in sorted(range(len(heads)), key=lambda head: -heads[head]):
        more = min(left, length - counts[head])
        counts[head] += more
        left -= more
    return tuple(counts)


def read_table(path: str | Path) -> tuple[Float[Tensor, "L h"], int]:
    """Read the score of every KV head, in float64, clamped to [0, 1] as the authors do.

    Returns:
        The scores, and 1 for the number of trainings.

    Raises:
        InvalidInput: no such file, or no table of numbers.
    """
    lines = [line.split() for line in read_text(Path(path)).split("\n") if line.strip()]
    try:
        rows = [[float(number) for number in line] for line in lines]
        is_complete = bool(rows) and all(math.isfinite(x) for row in rows for x in row)
        if not is_complete or len({len(row) for row in rows}) > 1:
            raise ValueError("its lines do not have equally many finite numbers")
    except ValueError as error:
        raise InvalidInput(
            f"{path} is no table of head scores ({error}); expected a line for each layer, with a "
            "number for each KV head, separated by tabs."
        ) from error
    return torch.tensor(rows, dtype=torch.float64, device="cpu").clamp(0, 1), 1


HEAD_FILES["duo_attention"] = HeadFile("KV", read_table)


@method("xiao2025duoattention", adds=("budget",))
def duo_attention(
    *, budget: Amount, profile: str, sinks: Count = 4, recent: Recent = 0.25
) -> Policy:
    """Whole prompt in retrieval heads; sinks and recent tokens in all others.

    ``profile`` holds each head's retrieval score; ``recent`` is a number of tokens or a share of
    the budget.

    Defaults:
        here: a quarter of the budget, and StreamingLLM's sinks; the release trains with 128 and 256
        tokens and answers with 64 and 256, which many budgets do not hold
    """
    return Policy(
        score=Recency(),
        budget=BestHeads(amount=budget, profile=profile),
        select=TopK(sinks=sinks, recent=recent),
    )
