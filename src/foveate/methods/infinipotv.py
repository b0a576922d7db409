"""InfiniPot-V: the cache of a long video stays within its budget while the video is read.

Text comes first. Of the rest of the budget, a share (``temporal``) goes to the newest frames and to
tokens that do not repeat in them (TaR), the rest to the tokens whose values have the highest norms
(VaN). Read the prompt in chunks (``generate(..., prefill_chunk_size=...)``, or ``session.expect``
and the model itself): whenever the heads store ``every`` pairs more than the budget, the cache is
compressed.

Differences from the authors' code: a token's position in its frame is the one that it had in the
video, where the release counts through the tokens left of earlier frames; and, as in the released
scripts, the paper's pooling of norms (section 4.2) is left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Share, ShareBetween
from foveate.stages import OverBudget, TextPrior, TopK, Uniform, ValueNorm, highest
from foveate.stages.recent import part
from foveate.stages.score.bases import Wrapper


@stage("novelty", head_by_head=True)
class Novelty(Wrapper):
    """Another score, with a part "novelty" that is low for tokens that repeat in the newest frames.

    It is minus the mean cosine of a visual token's key with the keys at its position in the newest
    frames. Tokens of those frames come first, the newest before all. Text has -inf. In float32.

    A frame is ``frame`` visual tokens, or an image if it is None. The newest frames are the last
    ``newest`` share (at least one) of as many frames as the stored visual tokens would fill.

    Source: InfiniPot-V (arXiv:2506.15745), section 4.1, temporal-axis redundancy.
    """

    frame: Positive | None = None
    newest: ShareBetween = 0.25

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        frame, spot = self._frames(layer)
        seen = layer.vision & layer.valid
        first = self._first_of_newest(frame, spot, seen)
        new = seen & (frame >= first[:, None, None])
        novelty = -_mean_cosine(layer.k.float(), spot, new)
        order = 2.0 + frame.float() / (1 + frame.amax((1, 2), keepdim=True)).clamp_min(1)
        novelty = torch.where(new, order, novelty).masked_fill(~seen, -torch.inf)
        return inner._replace(parts={**inner.parts, "novelty": novelty})

    def _frames(self, layer: Layer) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
        """Return the frame of each visual token, and its position in that frame."""
        image, spot = layer.slots.known_image, layer.slots.known_spot
        if self.frame is None:
            return image, spot.clamp_min(0)
        if bool((image > 0).any()):
            raise InvalidParameter(
                f"frame={self.frame} is for one video whose visual tokens are consecutive, but "
                "this prompt has text between them. Leave frame out: every image is a frame then."
            )
        return spot // self.frame, spot.clamp_min(0) % self.frame

    def _first_of_newest(
        self, frame: Int[Tensor, "b h n"], spot: Int[Tensor, "b h n"], seen: Bool[Tensor, "b h n"]
    ) -> Int[Tensor, "b"]:
        """Return each row's first frame that counts as new."""
        firsts = []
        for row, spots, mask in zip(frame, spot, seen, strict=True):
            known = torch.unique(row[mask])
            size = self.frame or int((spots * mask).max()) + 1
            frames = int(mask.sum(-1).max()) // size
            firsts.append(known[-max(1, int(frames * self.newest)) :][:1])
            if not len(known):  # no image, or none yet
                firsts[-1] = row.new_zeros(1)
        return torch.cat(firsts)


def _mean_cosine(
    k: Float[Tensor, "b h n d"], spot: Int[Tensor, "b h n"], new: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Return each key's mean cosine with ``new`` keys at its position in a frame; 0 without any."""
    unit = F.normalize(k, dim=-1)
    spots = int(spot.max()) + 1
    index = spot[..., None].expand_as(unit)
    total = unit.new_zeros(*unit.shape[:2], spots, unit.shape[3])
    total.scatter_add_(2, index, unit.masked_fill(~new[..., None], 0.0))  # padding may be anything
    count = unit.new_zeros(*unit.shape[:2], spots).scatter_add_(2, spot, new.float())
    return (unit * total.gather(2, index)).sum(-1) / count.gather(2, spot).clamp_min(1)


@stage("novel_first", head_by_head=True)
class NovelFirst(TopK):
    """Selection of a share with the highest part "novelty", then of the highest scores.

    ``share`` (rounded down) is a share of the budget that text leaves. Tokens that ``top_k`` always
    keeps come first.

    Source: InfiniPot-V (arXiv:2506.15745), section 4.
    """

    share: Share = 0.5

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "novelty" not in scored.scores.parts:
            raise InvalidParameter(
                f"{self!r} needs a score with a part 'novelty'. Use score=novelty(of=...)."
            )
        values = scored.scores.values
        free = values.isfinite()
        text = ((values == torch.inf) | (free & ~scored.layer.vision)).sum(-1)
        left = (counts - text).clamp_min(0)
        novelty = scored.scores.parts["novelty"].masked_fill(~free, -torch.inf)
        novel_count = torch.minimum(part(left, self.share), novelty.isfinite().sum(-1))
        novel = highest(novelty, novel_count)
        return highest(values.masked_fill(novel, torch.inf), counts)


@method("kim2025infinipotv", adds=("score", "select", "when"))
def infinipotv(
    *,
    budget: Amount,
    frame: Positive | None = None,
    temporal: Share = 0.5,
    newest: ShareBetween = 0.25,
    every: Positive = 256,
) -> Policy:
    """Text, new frames, visual tokens that do not repeat in them, and values of high norm.

    The cache is compressed while a video is read.

    ``frame`` is the number of visual tokens of a frame of a video, or null if frames are images.

    Args:
        frame: Visual tokens of a frame of a video; null: frames are images.
        temporal: Share of the budget beside text that goes to new and non-repeating tokens.
        newest: Share of the frames that count as the newest.

    Defaults:
        release; `every`: here
    """
    return Policy(
        score=Novelty(of=TextPrior(of=ValueNorm()), frame=frame, newest=newest),
        budget=Uniform(amount=budget),
        select=NovelFirst(share=temporal),
        when=OverBudget(every=every, reading=True, answering=False),
    )
