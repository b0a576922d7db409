"""HeadKV: SnapKV whose heads keep more the better they retrieve and reason (HeadKV-R2).

``profile`` holds the heads' scores: ``foveate calibrate headkv`` measures them,
``foveate.import_head_scores`` reads the files that the authors publish. Departs from the authors'
code in: KV heads, where the release scores query heads on a cache repeated for each; the
total, which is exact, where the release lets lapse what a strong head cannot use in a short prompt
(``as_released``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.policies.heads import HEAD_FILES, HEAD_READINGS, HeadFile, Shown, read
from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Kernel, Range, Window
from foveate.stages import HeadTable, Pool, Reduction, TopK, WindowAttention
from foveate.stages.budget.head_table import Temperature


@method("fu2025headkv", adds=("budget",))
def headkv(
    *,
    budget: Amount,
    profile: str,
    beta: Annotated[float, Range(1, 1_000_000)] = 1.01,
    temperature: Temperature = 1.0,
    as_released: bool = False,
    window: Window = 8,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in heads that retrieve what is asked for.

    One ``beta``-th of the budget goes by the heads' scores, the rest is shared evenly.

    Args:
        beta: One in so many of the budget goes by the heads' scores.
        temperature: Exponent of the heads' scores: higher is less even.

    Defaults:
        release; it tries `beta` from 1.005 to 10 (1.5 where none is said), of which
        KVCache-Factory's port takes 1.01
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=HeadTable(
            amount=budget,
            profile=profile,
            of="headkv",
            floor=1 - 1 / beta,
            temperature=temperature,
            as_released=as_released,
        ),
        select=TopK(recent=window),
    )


class RetrievalHeads:
    """A head scores what it pays to the evidence while the model answers: for every token, the
    attention to those of its ``n`` best places that are evidence, over ``n``, the tokens of all
    evidence. Only answers that share more than half of their words with the right one count.

    Source: HeadKV, section 3.1 (retrieval and reasoning, R2).
    """

    def notice(self, attention: Float[Tensor, "hq n"], shown: Shown) -> Float[Tensor, "hq"]:
        evidence = sorted({place for _, where in shown.spans for place in where})
        region = attention.new_tensor(evidence, dtype=torch.long)
        best = attention.topk(len(region), dim=-1)
        return (best.values * torch.isin(best.indices, region)).sum(-1) / len(region)

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], shown: Shown
    ) -> Float[Tensor, "hq"] | None:
        return noticed.sum(0) if f1("".join(tokens), shown.answer) > 0.5 else None


HEAD_READINGS["headkv"] = RetrievalHeads()
HEAD_FILES["headkv"] = HeadFile("query", read)


def f1(said: str, right: str) -> float:
    """Of the words of two texts, without case, articles and punctuation."""
    words = [
        [w for w in re.findall(r"\w+", text.lower()) if w not in ("a", "an", "the")]
        for text in (said, right)
    ]
    common = sum((Counter(words[0]) & Counter(words[1])).values())
    return 2 * common / (len(words[0]) + len(words[1])) if common else 0.0
