"""KVzap: KVzip's score, predicted by a small map that is fitted once, and a threshold on it.

KVzip reads a prompt twice. KVzap learns the result: for each pair the logarithm of KVzip+'s score,
the highest contribution that the pair makes to any token of the second reading. So nothing is read
again, a score does not depend on the other stored pairs, and it means the same in every prompt:
pairs at or above ``threshold`` stay, and the last ``recent`` tokens. Their number depends on the
prompt, head by head. With ``when=over_budget(every=64)`` the same goes on while an answer grows.
With a ``budget`` instead, one ranking of all heads sets each head's number, and the last tokens
take a tenth of the budget: a map that has learned which pairs repeat a page ranks the end of a
question low, and without it answers lose characters.

Differences from the authors' code:

* The map reads the head's own key and value as a cache stores them (the key after RoPE), where
  theirs reads the layer's hidden states.
* It is linear, where theirs may have a hidden layer.
* ``foveate calibrate kvzap`` fits it by ridge regression on the prompts that it is given, in
  minutes, where theirs were trained on 1.2 million samples for some models. Suitable thresholds
  thus depend on the profile.
* Keys beyond the profile's longest prompt are scored as if they were at its end
  (:mod:`foveate.profiles.far_keys`), which hidden states, without positions, do not need.
* Pairs below the threshold are evicted; theirs are masked and stay in memory.
* The first ``sinks`` tokens stay.

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
"""Number of last tokens that are kept beside a threshold."""
LAST = 0.1
"""Share of a budget that last tokens take, as in :mod:`foveate.methods.fast_kvzip`."""
RIDGE = 0.01
LEAST = 1e-6
"""Lowest score that is distinguishable from zero, since the logarithm is taken."""


@stage("surrogate_score")
class SurrogateScore(LinearMaps):
    """Logarithm of KVzip+'s score, predicted from each pair by the linear maps of a ``profile``.

    Each KV head has one map of key and value [d + e], in float32. Its exponential is the
    importance.

    Source: KVzap (arXiv:2601.07891), the linear form, of pairs instead of hidden states.
    """

    method = "kvzap"

    def __call__(self, layer: Layer) -> Scores:
        values = self.mapped(layer)
        return Scores(values, {"importance": values.exp()})


class SurrogateFit(Targeted):
    """Ridge regression, head by head, of log KVzip+ scores on keys and values.

    It collects sums of products over all pairs of all prompts.

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
    """Pairs whose predicted KVzip+ score is above a threshold, or the best within a budget.

    Give a ``threshold`` (-4 by default), which also keeps the last 128 tokens, or a ``budget``,
    which is split by one ranking of all heads.

    Args:
        threshold: Lowest log score that is kept, e.g. -4.
        recent: Last tokens, always kept; by default 128 beside a threshold, else a tenth of the
            budget.

    Raises:
        InvalidParameter: a budget beside a threshold.

    Defaults:
        kvpress's examples, which have no `sinks`
    """
    if budget is not None and threshold is not None:
        raise InvalidParameter(
            f"budget={budget} sets how many pairs are kept, and threshold={threshold} keeps any "
            "number of pairs. Give one of them."
        )
    keeps: Budget = AboveThreshold(threshold=-4.0 if threshold is None else threshold)
    if budget is not None:
        keeps = OneRanking(amount=budget)
    if recent is None:
        recent = SLIDING_WINDOW if budget is None else LAST
    return Policy(
        score=SurrogateScore(profile=profile),
        budget=keeps,
        select=TopK(sinks=sinks, recent=recent),
    )
