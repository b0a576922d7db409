"""CaM: H2O that merges evicted values, by chance, into the values of the kept tokens after them.

The merge works with any score that adds up attention (``h2o+cam``, ``snapkv+cam``). It runs once
after the prefill by default; ``when=over_budget`` is the paper's own rule, one pair per decoded
token.

Differences from the authors' code: the attention is the score's sum over all queries, as in the
paper and in kvpress, where the release takes the current query's alone; the mean is over the tokens
merged into, where the release takes all recent ones; the random draw follows from ``seed``.
Differences from kvpress: tokens are kept head by head, and every evicted value may merge, where
kvpress lets as many merge as tokens were decoded since it last compressed.
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


@stage(
    "merge_following",
    instead_for_latents="a latent has the value, and the key as well. Use lookm.merge.",
)
class MergeFollowing:
    """Merge of each evicted value into the next ``into`` kept pairs, divided by their number.

    Each of these gets 1 / ``into`` of the value, or more if fewer follow; without any it is
    dropped. Keys stay.

    The merge is random: its probability is the attention that the pair received over the mean of
    what those kept pairs received, at most 1. The draw follows from ``seed``, layer, head and
    position. If not ``sampled``, every evicted value merges. Sums are in float64, so float32 values
    come out correctly rounded.

    Source: CaM (ICML 2024), and CAMPress of kvpress.
    """

    into: Positive = 32
    sampled: bool = True
    seed: Seed = 0

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        layer, slots = scored.layer, kept.cumsum(-1)  # number of kept slots up to each slot
        total = slots[..., -1:]
        first, last = slots, (slots + self.into).clamp_max(total)
        merged = layer.valid & ~kept & (last > first)
        if self.sampled:
            merged &= self._drawn(scored) < _chance(scored.importance, kept, first, last)
        if not bool(merged.any()):
            return layer.k, layer.v
        # in place from here on: float64 takes at least twice the memory of the values
        own = layer.v.to(torch.float64, copy=True)
        portion = own / (last - first).clamp_min(1)[..., None]
        portion.masked_fill_(~merged[..., None], 0.0)
        (b, h, _, e), steps_length = own.shape, int(total.max()) + 1
        steps = own.new_zeros(b, h, steps_length, e)
        steps.scatter_add_(2, first[..., None].expand_as(portion), portion)
        steps.scatter_add_(2, last[..., None].expand_as(portion), portion.neg_())
        index = (slots - 1).clamp_min(0)[..., None].expand_as(portion)
        del portion
        taken = steps.cumsum_(2).gather(2, index)  # by each kept pair
        return layer.k, own.add_(taken.masked_fill_(~kept[..., None], 0.0)).to(layer.v.dtype)

    def _drawn(self, scored: Scored) -> Float[Tensor, "b h n"]:
        """Draw one number in [0, 1) for each slot, in float64."""
        layer = scored.layer
        heads = torch.arange(layer.k.shape[1], device=layer.k.device)[None, :, None]
        return uniform(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos)


def _chance(
    received: Float[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    first: Int[Tensor, "b h n"],
    last: Int[Tensor, "b h n"],
) -> Float[Tensor, "b h n"]:
    """Return each slot's received attention over the mean of kept pairs ``first`` to ``last``.

    ``first`` and ``last`` count kept pairs, so they index the list of kept pairs.

    Raises:
        InvalidParameter: the score is below zero somewhere, so it is no attention.
    """
    if bool((received < 0).any()):
        raise InvalidParameter(
            "merge_following draws by the attention that pairs have received, and this score is "
            "below zero for some. Use a score that sums attention, such as h2o's, or sampled=false."
        )
    sums = (received.double() * kept).cumsum(-1)
    by_kept = torch.zeros_like(sums[..., :1]).repeat(1, 1, sums.shape[-1] + 1)
    by_kept.scatter_(-1, first * kept, sums * kept)  # sums up to each kept pair
    mean = (by_kept.gather(-1, last) - by_kept.gather(-1, first)) / (last - first).clamp_min(1)
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
    """Most attended and recent tokens, with evicted values added to the kept tokens after them.

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
