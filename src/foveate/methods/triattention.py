"""TriAttention: how far behind them queries look, from where they lie before they are turned.

Before the rotation by their positions, a head's queries lie close to a centre. What a query at the
centre pays to a key then follows from how far away it is: for each pair of channels a cosine of the
distance, whose phase is the angle between centre and key. A key's score is the mean of that over
queries to come at distances that double, and the part of the queries' length that the centre does
not hold, times the key's. It needs no query of the prompt: ``profile`` holds centres and lengths,
``foveate calibrate triattention`` measures them. The cache is compressed after the prompt, and
whenever ``every`` tokens have come since.

Keys are scored as they are held: to turn them back and the centre forward is the same as to turn
the centre to the position that it looks from.

Departs from the authors' code in: heads of a layer choose by themselves, where the release's
scripts take the mean over the layers; the prompt, which is evicted from as well (there if asked
for); and channels that are not turned, which it does not know, and whose product with the centre
counts here. Positions are counted in tokens, which is not what a model with positions in images
does behind an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.rotation import Rotation, no_rotation, turned
from foveate.policies.gathering import GATHERINGS, TURNS, Gathering, Sums, as_tensors, check_text
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Recent
from foveate.stages import OverBudget, TopK, Uniform
from foveate.stages.score.bases import ByProfile

FARTHEST = 65_536
LEAST = 1e-6


@stage("distance_preference")
class DistancePreference(ByProfile):
    """Of each key, the mean over queries 1, 2, 4, ... ``FARTHEST`` positions ahead of what the
    centre of a query head's queries would pay to it there (a logit, not scaled), plus the lengths
    of key and queries that this does not count, for each pair of channels; less its mean over the
    slots, over its standard deviation; the maximum over the query heads of a KV head. In float32.

    Source: TriAttention (arXiv:2604.04921), after the release.
    """

    method = "triattention"

    def __call__(self, layer: Layer) -> Scores:
        paid = self.expected(layer)
        real = layer.valid[:, :, None].float()
        count = real.sum(-1, keepdim=True).clamp_min(1)
        off = (paid - (paid * real).sum(-1, keepdim=True) / count) * real
        deviation = (off.square().sum(-1, keepdim=True) / count).sqrt().clamp_min(LEAST)
        return Scores((off / deviation).amax(2))

    def expected(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        """What queries to come are expected to pay, before it is made comparable over heads."""
        (b, h), g, d = layer.k.shape[:2], layer.groups, layer.k.shape[3]
        k, turns = layer.k.float(), self.calibrated.rotation(layer)
        pairs = (h * g, len(turns.frequencies))
        centre, length = self.calibrated.of(layer, centre=(h * g, d), length=pairs)
        looking = _ahead(layer, centre, turns).view(b, h, g, d)
        of_keys = torch.hypot(k[..., turns.first], k[..., turns.second])
        rest = length - torch.hypot(centre[:, turns.first], centre[:, turns.second])
        return looking @ k.mT + rest.view(h, g, -1) @ of_keys.mT


def _ahead(layer: Layer, centre: Float[Tensor, "hq d"], turns: Rotation) -> Float[Tensor, "b hq d"]:
    """The mean of the centre, as it is at the positions that queries to come have."""
    steps = 2 ** torch.arange(FARTHEST.bit_length(), device=centre.device)
    places = (layer.lengths[:, None] + steps)[:, None]
    each = centre[None, :, None].expand(len(places), -1, len(steps), -1)
    return turned(each, places, turns).mean(2).float()


class Centres(Gathering):
    """The mean of all queries before they are turned by their positions, and the mean length of
    each of their pairs of channels; and how they are turned.

    Source: TriAttention (arXiv:2604.04921), after the release's calibration.
    """

    turns_back: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("centre", "length", *TURNS)

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        check_text(layer)
        q, real = layer.q.double(), (layer.q_pos >= 0).double()[:, None, :, None]
        turns = _known(rotation, q)
        if rotation is not None:
            q = turned(q, -layer.q_pos[:, None], turns)
        lengths = torch.hypot(q[..., turns.first], q[..., turns.second])
        sums = {"total": q, "lengths": lengths}
        added = {name: (x * real).sum((0, 2)) for name, x in sums.items()}
        return {**added, "count": real.sum()}

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        turns = _known(rotation, sums["total"])
        return {
            "centre": (sums["total"] / sums["count"]).float(),
            "length": (sums["lengths"] / sums["count"]).float(),
            **as_tensors(turns),
        }


def _known(rotation: Rotation | None, like: Tensor) -> Rotation:
    """The rotation, or one of no channels where a model has none."""
    return no_rotation(like.device) if rotation is None else rotation.to(like.device)


GATHERINGS["triattention"] = Centres()


@method("mao2026triattention", adds=("score", "when"))
def triattention(
    *, budget: Amount, profile: str, recent: Recent = 0, every: Positive = 128
) -> Policy:
    """Keeps keys at distances that a head's queries prefer, all along an answer; needs no query.

    Defaults:
        release, which for vLLM also keeps the last 128 tokens
    """
    return Policy(
        score=DistancePreference(profile=profile),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
        when=OverBudget(every=every),
    )
