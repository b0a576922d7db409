"""Elastic Cache: heavy hitters of the layer; every other pair merges into the kept one next to it.

While decoding, pairs at a fixed distance from the end of the prompt leave, so that the cache stays
at its ratio. Departs from the authors' code, which takes an argsort for a rank and so keeps other
tokens than the paper's, and one too few.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Positive
from foveate.stages import ColumnSums, FixedSlot, HeadMean, MergeNearest, TopK, Uniform


@method("liu2024elastic", adds=("score", "select", "merge", "when"))
def elastic_cache(
    *,
    budget: Amount,
    distance: Positive = 25,
) -> Policy:
    """Keeps what receives the most attention in a layer, and merges the rest into that.

    Args:
        distance: How far before the prompt's end pairs go while decoding.

    Defaults:
        release
    """
    return Policy(
        score=HeadMean(of=ColumnSums()),
        budget=Uniform(amount=budget),
        select=TopK(sinks=1, recent=1),
        merge=MergeNearest(by="position", how="averaged"),
        when=FixedSlot(distance=distance),
    )
