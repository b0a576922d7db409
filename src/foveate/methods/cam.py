"""CaM: H2O whose evicted values are merged, by chance, into those of the kept tokens after them.

The merging goes with any score that adds up attention (``h2o+cam``, ``snapkv+cam``). Once after the
prefill by default; ``when=over_budget`` is the paper's own rule, one pair per decoded token.

Departs from the authors' code in: the attention, which is the score's sum over all queries, as in
the paper and in kvpress, where the release takes the current query's alone; the mean, which is over
the tokens merged into, where the release takes all recent ones; and the draw, which follows from
``seed``. Departs from kvpress in: what is kept, head by head, and that every evicted value may
merge, where kvpress lets as many do as tokens were decoded since it compressed last.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Recent, Seed
from foveate.stages import ColumnSums, Reduction, TopK, Uniform
from foveate.stages.score.attention_free import uniform


@stage("merge_following")
class MergeFollowing:
    """Of each other pair, the value over ``into`` is added to the values of the ``into`` kept pairs
    that follow it (over their number, if there are fewer; not at all without any). Keys stay.

    It happens by chance: with the attention that the pair has received over the mean of what those
    have, at most one; the draw of a pair follows from ``seed``, layer, head and position. If not
    ``sampled``, it always happens. In float64, which float32 values come out of exactly rounded.

    Source: CaM (ICML 2024), and CAMPress of kvpress.
    """

    into: Positive = 32
    sampled: bool = True
    seed: Seed = 0

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        layer, slots = scored.layer, kept.cumsum(-1)  # kept ones, up to each slot
        total = slots[..., -1:]
        first, last = slots, (slots + self.into).clamp_max(total)
        merged = layer.valid & ~kept & (last > first)
        if self.sampled:
            merged &= self._drawn(scored) < _chance(scored.importance, kept, first, last)
        if not bool(merged.any()):
            return layer.k, layer.v
        # in place from here on: it is twice as large as what it copies
        own = layer.v.to(torch.float64, copy=True)
        given = own / (last - first).clamp_min(1)[..., None]
        given.masked_fill_(~merged[..., None], 0.0)
        (b, h, _, e), places = own.shape, int(total.max()) + 1
        steps = own.new_zeros(b, h, places, e)
        steps.scatter_add_(2, first[..., None].expand_as(given), given)
        steps.scatter_add_(2, last[..., None].expand_as(given), given.neg_())
        place = (slots - 1).clamp_min(0)[..., None].expand_as(given)
        del given
        taken = steps.cumsum_(2).gather(2, place)  # by each kept pair
        return layer.k, own.add_(taken.masked_fill_(~kept[..., None], 0.0)).to(layer.v.dtype)

    def _drawn(self, scored: Scored) -> Float[Tensor, "b h n"]:
        """From [0, 1), in float64."""
        layer = scored.layer
        heads = torch.arange(layer.k.shape[1], device=layer.k.device)[None, :, None]
        return uniform(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos)


def _chance(
    received: Float[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    first: Int[Tensor, "b h n"],
    last: Int[Tensor, "b h n"],
) -> Float[Tensor, "b h n"]:
    """What each slot received over the mean of the kept ones from place ``first`` to ``last``.

    Raises:
        InvalidParameter: a score that is below zero somewhere, so no attention.
    """
    if bool((received < 0).any()):
        raise InvalidParameter(
            "merge_following draws by how much attention pairs have received, and this score is "
            "below zero for some. Use one that adds up attention, as h2o's, or sampled=false."
        )
    sums = (received.double() * kept).cumsum(-1)
    by_place = torch.zeros_like(sums[..., :1]).repeat(1, 1, sums.shape[-1] + 1)
    by_place.scatter_(-1, first * kept, sums * kept)  # of the kept ones up to each place
    mean = (by_place.gather(-1, last) - by_place.gather(-1, first)) / (last - first).clamp_min(1)
    return (received / mean).nan_to_num(nan=0.0, posinf=1.0)


@method("zhang2024cam", adds=("merge",))
def cam(
    *,
    budget: Amount,
    recent: Recent = 0.5,
    into: Positive = 32,
    sampled: bool = True,
    seed: Seed = 0,
    group: Reduction = "mean",
) -> Policy:
    """Keeps what received the most attention, and adds other values to the kept ones after them.

    ``into`` is how many kept tokens share a value; ``recent`` a number of tokens or a share of the
    budget.

    Args:
        into: How many of the kept tokens that follow share a dropped value.
        sampled: Merge by chance, by the tokens' attention; otherwise always.

    Defaults:
        `recent`: the release's `start_ratio` = `recent_ratio`; `into`: kvpress
    """
    return Policy(
        score=ColumnSums(group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
        merge=MergeFollowing(into=into, sampled=sampled, seed=seed),
    )
