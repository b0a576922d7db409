"""CDPruner: visual tokens that differ from each other and are relevant to the question.

Before the first layer, a row's visual tokens are selected by a determinantal point process. Its
kernel is the cosine similarity of their embeddings, conditioned on the instruction: both sides of
it are multiplied by each token's relevance. It is maximised greedily: the next token is the one
that adds most to the determinant.

The paper takes the relevance from the text tower of CLIP, if the model's vision encoder has one.
Here it is the cosine between a visual token and the text of the prompt as the decoder reads them,
averaged over that text and scaled to [0, 1] within the row, so that it works for every model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, going_on, share
from foveate.stages.pruning_bases import BeforeAllLayers

LEAST = 1e-6
"""Lowest relevance and lowest gain of a token: no token counts as worthless."""


@prunes("cdpruner", "zhang2025cdpruner")
class CDPrunerPrune(BeforeAllLayers):
    """Visual tokens that differ from each other and are like the text (a conditional DPP).

    Source: CDPruner (arXiv:2506.10967), section 3 and Algorithm 1.
    """

    keep: AmountLike = "11.1%"

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        goes_on = torch.zeros_like(tokens.vision)
        unit = F.normalize(tokens.hidden.float(), dim=-1)
        counts = going_on(share(self.keep), tokens.visual_tokens).tolist()
        for row, count in enumerate(counts):
            visual = tokens.vision[row].nonzero()[:, 0]
            text = (tokens.pos[row] >= 0) & ~tokens.vision[row]
            if count:
                kernel = conditional_kernel(unit[row, visual], unit[row, text])
                goes_on[row, visual] = greedy_map(kernel, count)
        return Pruned(goes_on)


def conditional_kernel(
    visual: Float[Tensor, "v c"], text: Float[Tensor, "t c"]
) -> Float[Tensor, "v v"]:
    """Return the kernel of unit vectors, conditioned on their similarity to the text."""
    kernel = visual @ visual.T
    if not len(text):  # a chunk without text has no instruction to condition on
        return kernel
    alike = (visual @ text.T).mean(1)
    relevance = (alike - alike.min() + LEAST) / (alike.max() - alike.min() + LEAST)
    return relevance[:, None] * kernel * relevance


def greedy_map(kernel: Float[Tensor, "v v"], count: int) -> Bool[Tensor, "v"]:
    """Mark ``count`` items, each the one that adds most to the determinant of those chosen.

    Of equals the earlier wins. The gains are updated by a Cholesky factor that grows by a line for
    each item (Chen et al., arXiv:1709.05135).
    """
    gain, lines = kernel.diagonal().clone(), kernel.new_zeros(count, len(kernel))
    chosen = torch.zeros(len(kernel), dtype=torch.bool, device=kernel.device)
    for step in range(count):
        best = int(gain.masked_fill(chosen, -torch.inf).argmax())
        line = kernel[best] - lines[:step, best] @ lines[:step]
        lines[step] = line / gain[best].clamp_min(LEAST).sqrt()
        gain = gain - lines[step] ** 2
        chosen[best] = True
    return chosen
