"""SparseVLM: visual tokens that image-like words attend to, and clusters of the next best.

Before the first layer the raters are chosen: words whose embeddings resemble the image's more than
average, by a softmax over the words that follow it. Before each of the layers ``at`` the visual
tokens are ranked by the attention of the raters in the layer before, averaged over heads and
raters; the highest share stays. Of the others the best share ``recycled`` is clustered by density
(DPC-KNN), one cluster for every ten of them, and the mean of each cluster takes the slot of its
centre.

Differences from the release: tokens keep their positions, and a recycled token has that of its
cluster's centre, where the release renumbers tokens, the recycled ones after the chosen; of equally
dense tokens the earlier counts as denser, where the release draws at random; and where fewer tokens
are left than the share, all stay. Its second version (SparseVLM+), which recycles nothing, is not
implemented.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidParameter
from foveate.ops.window_attention import window_attention
from foveate.policies.amount import AmountLike
from foveate.policies.method import Amount
from foveate.policies.parameters import Positive, Share
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, number_going_on, share
from foveate.stages.pruning_bases import highest_visual

RATERS = "raters"


@prunes("sparsevlm", "zhang2025sparsevlm")
class SparseVLMPrune:
    """Visual tokens that image-like words attend to, and clusters of a part of the others.

    ``at`` are layers, and ``keep`` the shares of the visual tokens that stay from each on, with "|"
    between them; a single share holds for all of them. The defaults are those of the release for
    192 of 576 tokens on average. Clusters come on top: the share ``recycled`` of the dropped
    tokens, with one cluster for every ``to_one`` of them.

    Words are those of the pass after its first visual token, or all of its words if none follow;
    where a pass has no words, every token rates. A prompt in chunks is pruned chunk by chunk.

    Source: SparseVLM (arXiv:2410.04417), section 3 and the release.

    Raises:
        InvalidParameter: layers that do not ascend from 1 on, or another number of shares.
    """

    at: str | int = "3|7|16"
    keep: AmountLike = "52.1%|34.8%|19.1%"
    recycled: Share = 0.3
    to_one: Positive = 10

    def __post_init__(self) -> None:
        cuts = self._cuts()
        if not cuts or cuts[0] < 1 or list(cuts) != sorted(set(cuts)):
            raise InvalidParameter(
                f"at={self.at!r}: layers have to ascend, from 1 on, such as 3|7|16."
            )
        if len(self._shares()) != len(cuts):
            raise InvalidParameter(
                f"keep={self.keep!r} does not have a share for each of the layers {self.at}: give "
                f"{len(cuts)} shares with | between, or one for all."
            )

    def _cuts(self) -> tuple[int, ...]:
        parts = str(self.at).split("|")
        return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()

    def _shares(self) -> tuple[Amount, ...]:
        shares = self.keep.split("|") if isinstance(self.keep, str) else [self.keep]
        return tuple(share(keep) for keep in shares) * (
            len(self._cuts()) if len(shares) == 1 else 1
        )

    def layers(self, depth: int) -> tuple[int, ...]:
        """Return the layers of ``at``, and the first one, where the raters are chosen."""
        return (0, *self._cuts())

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        left = [sum(images)]
        for keep in self._shares():
            best = min(number_going_on(keep, sum(images)), left[-1])
            clustered = self._number_recycled(left[-1] - best)
            left.append(best + (clustered // self.to_one + 1 if clustered else 0))
        return tuple(left)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        if not tokens.layer:
            return Pruned(torch.ones_like(tokens.vision), notes={RATERS: raters(tokens)})
        keep = self._shares()[self._cuts().index(tokens.layer)]
        paid = paid_by(tokens.attended(), tokens.notes[RATERS])[:, -tokens.pos.shape[1] :]
        goes_on = highest_visual(tokens, paid, keep).goes_on
        dropped, hidden = tokens.vision & ~goes_on, None
        if self.recycled and bool(dropped.any()):
            hidden = tokens.hidden.clone()
            for row, dropped_of_row in enumerate(dropped):
                recycled = self._recycled(dropped_of_row.nonzero()[:, 0], paid[row])
                if not len(recycled):
                    continue
                centres, means = clustered(
                    tokens.hidden[row, recycled], len(recycled) // self.to_one + 1
                )
                goes_on[row, recycled[centres]], hidden[row, recycled[centres]] = True, means
        return Pruned(goes_on, hidden)

    def _recycled(self, dropped: Tensor, paid: Float[Tensor, "t"]) -> Tensor:
        """Return the positions of dropped tokens that are recycled."""
        count = self._number_recycled(len(dropped))
        return dropped[paid[dropped].topk(count).indices.sort().values]

    def _number_recycled(self, dropped: int) -> int:
        """Return how many of ``dropped`` tokens are recycled."""
        return min(dropped, int(dropped * self.recycled) + 1) if self.recycled else 0


def raters(tokens: EnteringTokens) -> Bool[Tensor, "b t"]:
    """Mark the words that resemble the image."""
    rating, real = torch.zeros_like(tokens.vision), tokens.pos >= 0
    behind = tokens.vision.long().cumsum(-1) > 0
    for row, visual in enumerate(tokens.vision):
        words = real[row] & ~visual
        words = words & behind[row] if bool((words & behind[row]).any()) else words
        if not bool(words.any()) or not bool(visual.any()):
            rating[row] = words if bool(words.any()) else real[row]
            continue
        hidden = tokens.hidden[row].float()
        alike = (hidden[visual] @ hidden[words].T).softmax(-1).mean(0)
        rating[row, words] = (alike > alike.mean()) | (alike == alike.max())
    return rating


def paid_by(layer: Layer, raters: Bool[Tensor, "b m"]) -> Float[Tensor, "b n"]:
    """Return the raters' attention to every slot, averaged over raters and heads."""
    at = raters.any(0).nonzero()[:, 0]
    rating = raters[:, at]
    paid = window_attention(layer.q[:, :, at], layer.k, layer.slots.visible_to(at), layer.scale)
    paid = paid.masked_fill(~rating[:, None, None, :, None], 0.0).sum(3).mean((1, 2))
    return paid / rating.sum(-1, keepdim=True)


def clustered(
    x: Float[Tensor, "v c"], count: int
) -> tuple[Bool[Tensor, "v"], Float[Tensor, "count c"]]:
    """Mark the centres of ``count`` clusters, and return their means in the order of centres.

    Centres are dense tokens that are far from any denser one; every other token joins the nearest
    centre. Density is measured on the ``count`` nearest tokens.
    """
    wide = x.float()
    exact = "donot_use_mm_for_euclid_dist"  # so that a token's distance to itself is exactly 0
    distance = torch.cdist(wide, wide, compute_mode=exact) / x.shape[1] ** 0.5
    density = (-distance.topk(count, largest=False).values.square().mean(-1)).exp()
    order = torch.arange(len(x), device=x.device)
    earlier_equal = (density[:, None] == density) & (order < order[:, None])
    denser = (density > density[:, None]) | earlier_equal
    apart = distance.where(denser, distance.max()).amin(-1)
    centres = (apart * density).topk(count).indices.sort().values
    own = distance[:, centres].argmin(-1)
    own[centres] = torch.arange(count, device=x.device)
    members = F.one_hot(own, count).to(x.dtype)
    marked = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    marked[centres] = True
    return marked, members.T @ x / members.sum(0)[:, None]
