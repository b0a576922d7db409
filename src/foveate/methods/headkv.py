"""HeadKV: SnapKV with more pairs for heads that retrieve and reason well (HeadKV-R2).

``profile`` holds the heads' scores: ``foveate calibrate headkv`` measures them,
``foveate.import_head_scores`` reads the files that the authors publish. Differences from the
authors' code: KV heads are scored, where the release scores query heads on a cache repeated for
each; the total is exact, where the release drops the part that a strong head cannot use in a short
prompt (``as_released``).
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
    """Tokens that the last queries attend to, with more in heads that retrieve the answer.

    One ``beta``-th of the budget is shared by the heads' scores, the rest evenly (section 3.2).

    Args:
        beta: Divisor of the budget that gives the part shared by head scores, e.g. 1.01.
        temperature: Exponent of the heads' scores: higher is less even.

    Defaults:
        release; it tries `beta` from 1.005 to 10 (1.5 by default), of which KVCache-Factory's port
        takes 1.01
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
    """Head scores by the attention that each head pays to the evidence while the model answers.

    For every generated token: the attention to the evidence tokens among the head's ``n`` most
    attended ones, over ``n``, the number of evidence tokens. Only answers that share more than half
    of their words with the right one count.

    Source: HeadKV, section 3.1 (retrieval and reasoning, R2).
    """

    def notice(self, attention: Float[Tensor, "hq n"], prompt: Shown) -> Float[Tensor, "hq"]:
        evidence = sorted({position for _, where in prompt.spans for position in where})
        region = attention.new_tensor(evidence, dtype=torch.long)
        best = attention.topk(len(region), dim=-1)
        return (best.values * torch.isin(best.indices, region)).sum(-1) / len(region)

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], prompt: Shown
    ) -> Float[Tensor, "hq"] | None:
        return noticed.sum(0) if f1("".join(tokens), prompt.answer) > 0.5 else None


HEAD_READINGS["headkv"] = RetrievalHeads()
HEAD_FILES["headkv"] = HeadFile("query", read)


def f1(answer: str, right: str) -> float:
    """Return the F1 of the words of two texts, ignoring case, articles and punctuation."""
    words = [
        [w for w in re.findall(r"\w+", text.lower()) if w not in ("a", "an", "the")]
        for text in (answer, right)
    ]
    common = sum((Counter(words[0]) & Counter(words[1])).values())
    return 2 * common / (len(words[0]) + len(words[1])) if common else 0.0
