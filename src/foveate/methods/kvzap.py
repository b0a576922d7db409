"""KVzap: KVzip's score, foretold by a small map that was fitted once, and a threshold on it.

KVzip reads a prompt twice. KVzap learns what that would say: of each pair the logarithm of KVzip+'s
score, the most that any token of the second reading draws of it. So nothing is read again, a score
does not depend on what else is held, and it means the same in every prompt: pairs at or above
``threshold`` stay, and the last ``recent`` tokens. How many that is the prompt says, head by head.
With ``when=over_budget(every=64)`` the same goes on while an answer grows. With a ``budget``
instead, one ranking of all heads says what each keeps.

Departs from the authors' code in what the map reads: there the layer's hidden states, here the
head's own key and value, which are what a cache holds of them (the key turned by its position); it
is linear, where theirs may have a hidden layer; and ``foveate calibrate kvzap`` fits it by ridge
regression on the prompts that it is given, in minutes, where theirs were trained on 1.2 million
samples for some models. Which thresholds suit is thus a question of the profile. Keys behind its
longest prompt are read as if they stood at its end (:mod:`foveate.profiles.far_keys`), which hidden
states, without positions, do not need. Their threshold hides pairs that stay in memory; here they
go. The first ``sinks`` tokens stay.

A model whose output projection cannot be read gets a profile of KVzip's own score, the attention
alone: its target is then "attention".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidParameter
from foveate.ops.ridge import ridge_regression
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import GATHERINGS, Asked, Sums, Targeted
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.policies.protocols import Budget, Score
from foveate.stages import AboveThreshold, OneRanking, TopK
from foveate.stages.budget.one_ranking import Threshold
from foveate.stages.score.linear_maps import LinearMaps, products
from foveate.stages.score.reconstruction import NOTED, Reconstruction

SLIDING_WINDOW = 128
"""The last tokens that a threshold leaves."""
RIDGE = 0.01
LEAST = 1e-6
"""The least score that is told apart from none, as it has a logarithm."""


@stage("surrogate_score")
class SurrogateScore(LinearMaps):
    """The logarithm of what KVzip+ would say of each pair, by the linear maps of a ``profile``, one
    for each KV head, of its key and value [d + e]; in float32. Its exponential is the importance.

    Source: KVzap (arXiv:2601.07891), the linear form, of pairs instead of hidden states.
    """

    method = "kvzap"

    def __call__(self, layer: Layer) -> Scores:
        values = self.mapped(layer)
        return Scores(values, {"importance": values.exp()})


class SurrogateFit(Targeted):
    """Ridge regression, head by head, of the logarithm of KVzip+'s score on keys and values: sums
    of products over all pairs of all prompts.

    Source: KVzap (arXiv:2601.07891), which trains on mean squared error.
    """

    turns_far_keys: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("contribution", "attention")
    names: ClassVar[tuple[str, ...]] = ("of_key", "of_value", "offset")

    def watching(self, target: str, questions: Asked) -> Score:
        return Reconstruction(by="attention" if target == "attention" else "contribution")

    def reached(self, target: str, sums: Sums) -> str:
        return target

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        score = layer.state[NOTED].clamp_min(LEAST).log()
        of_pairs, goals = products(layer, score)
        of_key = score.new_zeros(layer.k.shape[-1])  # for its length
        return {"products": of_pairs, "goals": goals, "of_key": of_key}

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        weights, offset = ridge_regression(sums["products"], sums["goals"], RIDGE)
        of_key, of_value = weights.float().tensor_split([len(sums["of_key"])], dim=1)
        return {"of_key": of_key, "of_value": of_value, "offset": offset.float()}


GATHERINGS["kvzap"] = SurrogateFit()


@method("jegou2026kvzap", adds=("score", "budget", "select"))
def kvzap(
    *,
    profile: str,
    budget: Amount | None = None,
    threshold: Threshold | None = None,
    sinks: Count = 1,
    recent: Recent | None = None,
) -> Policy:
    """Keeps pairs whose score, foretold from the pair alone, is above a threshold, or the best.

    Either a ``threshold`` says what is kept (-4 if there is neither), and the last 128 tokens; or a
    ``budget``, by one ranking of all heads.

    Args:
        threshold: The lowest logarithm of a score that is kept.
        recent: The last tokens, always kept; by default 128 beside a threshold, else none.

    Raises:
        InvalidParameter: a budget beside a threshold.

    Defaults:
        kvpress's examples, which have no `sinks`
    """
    if budget is not None and threshold is not None:
        raise InvalidParameter(
            f"budget={budget} says how many pairs are kept, and threshold={threshold} which, "
            "however many. Give one of them."
        )
    keeps: Budget = AboveThreshold(threshold=-4.0 if threshold is None else threshold)
    if budget is not None:
        keeps = OneRanking(amount=budget)
    if recent is None:
        recent = SLIDING_WINDOW if budget is None else 0
    return Policy(
        score=SurrogateScore(profile=profile),
        budget=keeps,
        select=TopK(sinks=sinks, recent=recent),
    )
