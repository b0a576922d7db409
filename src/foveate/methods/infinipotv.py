"""InfiniPot-V: the cache of a long video stays within its budget while the video is read.

Text comes first; of the places that it leaves, a share (``temporal``) goes to the newest frames and
to what does not repeat in them (TaR), the rest to the tokens whose values have the highest norms
(VaN). Read the prompt in chunks (``generate(..., prefill_chunk_size=...)``, or ``session.expect``
and the model itself): whenever the heads hold ``every`` pairs more than the budget, what they hold
is compressed.

Departs from the authors' code in two ways: a place in a frame is the one that the token had in the
video, where the release counts through what is left of earlier frames; and, as in the released
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
    """Another score, with a part "novelty": minus the mean cosine of a visual token's key with the
    keys at its place in the newest frames; those frames themselves come first, the newest before
    all. Text has none (-inf). In float32.

    Frames are ``frame`` visual tokens each, or, if it is null, images. Of as many frames as the
    visual tokens held would fill, the last ``newest`` (a share, at least one frame) are the newest.

    Source: InfiniPot-V (arXiv:2506.15745), section 4.1, temporal-axis redundancy.
    """

    frame: Positive | None = None
    newest: ShareBetween = 0.25

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        frame, place = self._frames(layer)
        seen = layer.vision & layer.valid
        first = self._first_of_newest(frame, place, seen)
        new = seen & (frame >= first[:, None, None])
        novelty = -_mean_cosine(layer.k.float(), place, new)
        order = 2.0 + frame.float() / (1 + frame.amax((1, 2), keepdim=True)).clamp_min(1)
        novelty = torch.where(new, order, novelty).masked_fill(~seen, -torch.inf)
        return inner._replace(parts={**inner.parts, "novelty": novelty})

    def _frames(self, layer: Layer) -> tuple[Int[Tensor, "b h n"], Int[Tensor, "b h n"]]:
        """The frame of each visual token, and its place in that."""
        image, spot = layer.slots.known_image, layer.slots.known_spot
        if self.frame is None:
            return image, spot.clamp_min(0)
        if bool((image > 0).any()):
            raise InvalidParameter(
                f"frame={self.frame} is for one video whose visual tokens follow each other, and "
                "this prompt has text between them. Leave frame out: every image is a frame then."
            )
        return spot // self.frame, spot.clamp_min(0) % self.frame

    def _first_of_newest(
        self, frame: Int[Tensor, "b h n"], place: Int[Tensor, "b h n"], seen: Bool[Tensor, "b h n"]
    ) -> Int[Tensor, "b"]:
        """In each row, the first of the frames that count as new."""
        firsts = []
        for row, spots, mask in zip(frame, place, seen, strict=True):
            known = torch.unique(row[mask])
            size = self.frame or int((spots * mask).max()) + 1
            held = int(mask.sum(-1).max()) // size
            firsts.append(known[-max(1, int(held * self.newest)) :][:1])
            if not len(known):  # no image, or none yet
                firsts[-1] = row.new_zeros(1)
        return torch.cat(firsts)


def _mean_cosine(
    k: Float[Tensor, "b h n d"], place: Int[Tensor, "b h n"], new: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Of each key with the keys of ``new`` tokens at its place; 0 where there are none."""
    unit = F.normalize(k, dim=-1)
    places = int(place.max()) + 1
    index = place[..., None].expand_as(unit)
    total = unit.new_zeros(*unit.shape[:2], places, unit.shape[3])
    total.scatter_add_(2, index, unit.masked_fill(~new[..., None], 0.0))  # padding may be anything
    count = unit.new_zeros(*unit.shape[:2], places).scatter_add_(2, place, new.float())
    return (unit * total.gather(2, index)).sum(-1) / count.gather(2, place).clamp_min(1)


@stage("novel_first", head_by_head=True)
class NovelFirst(TopK):
    """Beside what ``top_k`` always keeps: of the places that text would leave, ``share`` (rounded
    down) to the highest part "novelty", all others to the highest scores.

    Source: InfiniPot-V (arXiv:2506.15745), section 4.
    """

    share: Share = 0.5

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "novelty" not in scored.scores.parts:
            raise InvalidParameter(
                f"{self!r} draws on how new tokens are, and this score does not tell. Use it with "
                "score=novelty(of=...)."
            )
        values = scored.scores.values
        free = values.isfinite()
        text = ((values == torch.inf) | (free & ~scored.layer.vision)).sum(-1)
        left = (counts - text).clamp_min(0)
        novelty = scored.scores.parts["novelty"].masked_fill(~free, -torch.inf)
        wanted = torch.minimum(part(left, self.share), novelty.isfinite().sum(-1))
        novel = highest(novelty, wanted)
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
    """Keeps text, new frames, what does not repeat in them, and large values, while it reads.

    ``frame`` is the number of visual tokens of a frame of a video, or null if frames are images.

    Args:
        frame: Visual tokens of a frame of a video; null: frames are images.
        temporal: Share of the places that go to what is new in time.
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
