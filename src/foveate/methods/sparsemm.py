"""SparseMM: SnapKV whose heads keep more the better they look at what they name in an image.

``profile`` holds the heads' scores: ``foveate calibrate sparsemm`` measures them,
``foveate.import_head_scores`` reads the files that the authors publish. Departs from the authors'
code in the total, which is exact, where the release lets lapse what a strong head cannot use in a
short prompt (``as_released``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.policies.heads import HEAD_FILES, HEAD_READINGS, HeadFile, Shown, read
from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Kernel, Share, Window
from foveate.stages import HeadTable, Pool, Reduction, TopK, WindowAttention


@method("wang2025sparsemm", adds=("budget",))
def sparsemm(
    *,
    budget: Amount,
    profile: str,
    ratio: Share = 0.1,
    as_released: bool = False,
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in heads that look at what they read.

    ``ratio`` of the budget is shared evenly, the rest by the heads' scores.

    Args:
        ratio: Share of the budget that is shared evenly; heads' scores share the rest.

    Defaults:
        release
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=HeadTable(
            amount=budget, profile=profile, of="sparsemm", floor=ratio, as_released=as_released
        ),
        select=TopK(recent=window),
    )


class VisualHeads:
    """A head scores where it looks at what the model reads out: for every token that stands in one
    text of an image alone, 1 / (tokens that show this text), if the head's largest attention is to
    one of them.

    Source: SparseMM, section 3.1, algorithm 1.
    """

    def notice(self, attention: Float[Tensor, "hq n"], shown: Shown) -> Float[Tensor, "hq"]:
        return attention.argmax(-1).float()

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], shown: Shown
    ) -> Float[Tensor, "hq"]:
        total = torch.zeros_like(noticed[0])
        for looked, token in zip(noticed, tokens, strict=True):
            word = token.strip()
            places = [where for text, where in shown.spans if word and word in text]
            if len(places) == 1:
                region = looked.new_tensor(places[0], dtype=torch.long)
                total += torch.isin(looked.long(), region).float() / len(region)
        return total


HEAD_READINGS["sparsemm"] = VisualHeads()
HEAD_FILES["sparsemm"] = HeadFile("query", read)
