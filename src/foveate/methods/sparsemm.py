"""SparseMM: SnapKV with more pairs for heads that attend to the image regions they name.

``profile`` holds the heads' scores: ``foveate calibrate sparsemm`` measures them,
``foveate.import_head_scores`` reads the files that the authors publish. Difference from the
authors' code: the total is exact, where the release drops the part that a strong head cannot use in
a short prompt (``as_released``).
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
    """Tokens that the last queries attend to, with more in visual heads.

    ``ratio`` of the budget is shared evenly, the rest by the heads' scores (section 3.2).

    Args:
        ratio: Share of the budget that all heads share evenly, e.g. 0.1.

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
    """Head scores by attention to the part of an image that the model reads out.

    For every generated token that occurs in exactly one text of an image, a head scores 1 / (image
    tokens that show this text) if its highest attention is on one of them.

    Source: SparseMM, section 3.1, algorithm 1.
    """

    def notice(self, attention: Float[Tensor, "hq n"], prompt: Shown) -> Float[Tensor, "hq"]:
        return attention.argmax(-1).float()

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], prompt: Shown
    ) -> Float[Tensor, "hq"]:
        total = torch.zeros_like(noticed[0])
        for attended, token in zip(noticed, tokens, strict=True):
            word = token.strip()
            regions = [positions for text, positions in prompt.spans if word and word in text]
            if len(regions) == 1:
                region = attended.new_tensor(regions[0], dtype=torch.long)
                total += torch.isin(attended.long(), region).float() / len(region)
        return total


HEAD_READINGS["sparsemm"] = VisualHeads()
HEAD_FILES["sparsemm"] = HeadFile("query", read)
