"""DAVID: vision and text are ranked apart until the layers have fused them.

In shallow layers visual and text tokens are of different kinds and get their own budgets; in deep
layers they are of one kind and ranked together. The switch is the normalised cross attention rate:
the attention that visual tokens receive from the last queries, over an even share. Equations 2 to 7
and Algorithm 1 are below, in order; no code was ever released.

The paper contradicts itself, and both versions are options:

* Decoupling stops when the rate falls by less than the threshold (eq. 7, Algorithm 1:
  "delta_below"), by more ("abrupt drops": "delta_above"), or is below it (Fig. 2: "theta_below").
* Eq. 6 divides by r, line 16 does not (`normalised=False`): the first rate is then far above 1 and
  decoupling never runs.
* B_V is rho/(1 + rho) of the budget (rho = B_V/B_T), and 1/(1 + rho) in line 28
  (`split="algorithm"`).
* Eq. 3 pools over all tokens, so that scores of the recent ones, which are kept anyway, leak into
  two others (`pool_window=True`). The default pools before them, as SnapKV does, since the paper's
  ablation without its parts is exactly SnapKV.

Added where the paper is silent: a modality with fewer tokens than its share leaves the rest to the
other; a prompt without images is never decoupled; under GQA the mean over a KV head's query heads
is used.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores, WindowWeights
from foveate.cache.slots import Slots
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Factor, Kernel, Window
from foveate.policies.protocols import Score
from foveate.stages import KeepsRecent, Reduction, Uniform, WindowAttention, highest
from foveate.stages.recent import budget_of, most_recent, part, recent_tokens
from foveate.stages.score.window import on_average, paid_on_average

Rule = Literal["delta_below", "delta_above", "theta_below", "always", "never"]
RULES = ("delta_below", "delta_above", "theta_below", "always", "never")
Split = Literal["text", "algorithm"]


def ncar(
    attention: Float[Tensor, "b h n"], vision: Bool[Tensor, "b h n"], valid: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b"]:
    """Return the normalised cross attention rate of each row (eq. 6); zero without images.

    It is the attention of the last queries to visual tokens (the mean over queries and heads), over
    the attention of an even share.
    """
    received = (attention * vision).sum(-1).mean(1)
    tokens, visual = valid.sum((1, 2)), vision.sum((1, 2))
    return received * tokens / visual.clamp_min(1)


@stage("modality_fusion")
class ModalityFusion:
    """Another score, with notes "ncar" and "decoupled", [b]: the fusion rate and the layer's state.

    Algorithm 1, lines 4, 5 and 15 to 22. The rate is taken over the queries that the score observes
    (its part "attention"), or over the last ``window`` if it observes none. ``rule`` "always" and
    "never" are the ablations.
    """

    of: Score
    window: Window = 0.5
    threshold: float = 0.3
    rule: Rule = "delta_below"
    normalised: bool = True

    def queries(self, tokens: int) -> int:
        return max(most_recent(self.window, tokens), self.of.queries(tokens))

    def window_weights(self, slots: Slots, groups: int) -> WindowWeights:
        return on_average(slots, self.window, groups, "mean")

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        attention = scores.parts.get("attention")
        if attention is None:
            attention = paid_on_average(layer, self.window).mean
        vision = layer.vision & layer.valid
        theta = ncar(attention, vision, layer.valid)
        if not self.normalised:
            r = recent_tokens(self.window, budget_of(layer.slots, self.window)).clamp_min(1)
            theta = theta * torch.minimum(r, layer.lengths)
        before = layer.earlier[-1] if layer.earlier else {}
        last = before.get("ncar", torch.ones_like(theta))  # theta_0 = 1
        decoupled = before.get("decoupled", torch.ones_like(theta, dtype=torch.bool))
        decoupled = decoupled & ~self._stops(theta, last - theta) & vision.any(-1).any(-1)  # eq. 7
        return scores._replace(notes={**scores.notes, "ncar": theta, "decoupled": decoupled})

    def _stops(self, theta: Float[Tensor, "b"], delta: Float[Tensor, "b"]) -> Bool[Tensor, "b"]:
        """Evaluate the stopping rule (eq. 7 and Algorithm 1, lines 18 to 20)."""
        return {
            "delta_below": delta < self.threshold,
            "delta_above": delta > self.threshold,
            "theta_below": theta < self.threshold,
            "always": torch.zeros_like(theta, dtype=torch.bool),
            "never": torch.ones_like(theta, dtype=torch.bool),
        }[self.rule]


@stage("decoupled")
class Decoupled(KeepsRecent):
    """Selection of the best of each modality in decoupled layers, of the best of all in the others.

    The score's note "decoupled" tells them apart; recent tokens are always kept (eq. 5, Algorithm
    1, lines 23 to 33).
    """

    rho: Factor = 1.0
    split: Split = "text"

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, vision = scored.scores.values, scored.layer.vision
        if (decoupled := scored.scores.notes.get("decoupled")) is None:
            raise InvalidParameter(
                "the selection decoupled needs a score with a note 'decoupled'. Wrap the score: "
                "modality_fusion(of=...)."
            )
        if not bool(decoupled.any()):
            return highest(values, counts)  # eq. 3, in every row
        protected, free = values == torch.inf, values.isfinite()
        free_slots = counts - protected.sum(-1)  # B_s
        rho = Fraction(str(self.rho))
        share = (rho if self.split == "text" else Fraction(1)) / (1 + rho)
        visual, textual = (free & vision).sum(-1), (free & ~vision).sum(-1)
        to_vision = part(free_slots, share)  # line 28
        to_vision = torch.maximum(torch.minimum(to_vision, visual), free_slots - textual)
        # The masks are eq. 4; the best slots that each mask leaves are eq. 5.
        apart = highest(values.masked_fill(~(free & vision), -torch.inf), to_vision) | highest(
            values.masked_fill(~(free & ~vision), -torch.inf), free_slots - to_vision
        )
        return torch.where(decoupled[:, None, None], apart | protected, highest(values, counts))


@method("gu2026david", adds=("score", "select"), wraps=True)
def david(
    *,
    budget: Amount,
    recent: Window = 0.5,
    rho: Factor = 1.0,
    threshold: float = 0.3,
    rule: Rule = "delta_below",
    split: Split = "text",
    normalised: bool = True,
    kernel: Kernel = 5,
    pool_window: bool = False,
    group: Reduction = "mean",
) -> Policy:
    """Best visual and best text tokens apart, until the layers have fused the two modalities.

    Score: eqs. 2 and 3; selection: eqs. 4 and 5; switch: eqs. 6 and 7. `recent` (tokens, or a share
    of the budget) is the observation window, which is kept; `rho` is visual over text tokens: 2 for
    reading, 1 for mathematics in the paper.

    Args:
        rho: Visual over text tokens kept where layers are decoupled.
        threshold: Fusion rate, or its change, at which decoupling stops, e.g. 0.3.
        rule: Stopping rule of decoupling: change of the fusion rate, or the rate itself.
        split: Vision's share of the budget: as in the paper's text, or in its algorithm.
        normalised: Normalise the fusion rate; without, layers hardly ever decouple.
        pool_window: Pool over the window's tokens as well.

    Defaults:
        `threshold`, `rho` (1; 2 for OCRBench and MM-Vet): Implementation Details; no code, and no
        window or kernel in the paper: half of the budget, and SnapKV's kernel
    """
    attention = WindowAttention(
        window=recent, kernel=kernel, pool="max", group=group, pool_window=pool_window
    )
    # Algorithm 1: the score is lines 11 to 22, the selection the rest; both go layer by layer
    return Policy(
        score=ModalityFusion(
            of=attention, window=recent, threshold=threshold, rule=rule, normalised=normalised
        ),
        budget=Uniform(amount=budget),
        select=Decoupled(recent=recent, rho=rho, split=split),
    )
