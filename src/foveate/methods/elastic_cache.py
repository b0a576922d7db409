"""Elastic Cache: a layer's most attended tokens, with every other pair merged into the nearest.

While decoding, pairs at a fixed distance from the end of the prompt are evicted, so that the cache
stays at its ratio. Difference from the authors' code: it uses an argsort as if it were a rank, and
so keeps other tokens than the paper's, and one too few.
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
    """Most attended tokens of each layer, with every other pair merged into the nearest kept one.

    Args:
        distance: Slots between the prompt's end and the pairs evicted while decoding, e.g. 25.

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
