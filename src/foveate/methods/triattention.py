"""TriAttention: keys at the distances that a head's queries prefer, measured before RoPE.

Before the rotation by their positions, a head's queries are close to a centre. The attention of a
query at the centre to a key then follows from their distance: for each pair of channels it is a
cosine of the distance, whose phase is the angle between centre and key. A key's score is the mean
of that over future queries at distances that double, plus the part of the queries' length that the
centre does not account for, times the key's length. It needs no query of the prompt: ``profile``
holds centres and lengths, ``foveate calibrate triattention`` measures them. The cache is compressed
after the prompt, and whenever ``every`` tokens have been added.

Keys are scored as they are stored, after RoPE: rotating the centre to the position that it attends
from equals rotating the key back.

Differences from the authors' code: heads of a layer choose by themselves, where the release's
scripts take the mean over the layers; the prompt is compressed, too (optional there); channels
without rotation, which the release does not support, count by their product with the centre.
Positions are counted in tokens, which is wrong after an image for models whose positions run in
images.
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
    """Expected attention of future queries to each key, by a head's preferred distances.

    It is the mean over queries 1, 2, 4, ... ``FARTHEST`` positions ahead of the logit (not scaled)
    of the centre of a query head's queries, plus, for each pair of channels, the product of the
    lengths of key and queries that the centre does not account for. It is standardised over the
    slots; the maximum over the query heads of a KV head is taken. In float32.

    Source: TriAttention (arXiv:2604.04921), after the release.
    """

    method = "triattention"

    def __call__(self, layer: Layer) -> Scores:
        paid = self.expected(layer)
        real = layer.valid[:, :, None].float()
        count = real.sum(-1, keepdim=True).clamp_min(1)
        centred = (paid - (paid * real).sum(-1, keepdim=True) / count) * real
        deviation = (centred.square().sum(-1, keepdim=True) / count).sqrt().clamp_min(LEAST)
        return Scores((centred / deviation).amax(2))

    def expected(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        """Return the expected logits of future queries, before they are standardised."""
        (b, h), g, d = layer.k.shape[:2], layer.groups, layer.k.shape[3]
        k, turns = layer.k.float(), self.calibrated.rotation(layer)
        pairs = (h * g, len(turns.frequencies))
        centre, length = self.calibrated.of(layer, centre=(h * g, d), length=pairs)
        centres = _ahead(layer, centre, turns).view(b, h, g, d)
        of_keys = torch.hypot(k[..., turns.first], k[..., turns.second])
        rest = length - torch.hypot(centre[:, turns.first], centre[:, turns.second])
        return centres @ k.mT + rest.view(h, g, -1) @ of_keys.mT


def _ahead(layer: Layer, centre: Float[Tensor, "hq d"], turns: Rotation) -> Float[Tensor, "b hq d"]:
    """Return the mean of the centre, rotated to the positions of future queries."""
    steps = 2 ** torch.arange(FARTHEST.bit_length(), device=centre.device)
    positions = (layer.lengths[:, None] + steps)[:, None]
    copies = centre[None, :, None].expand(len(positions), -1, len(steps), -1)
    return turned(copies, positions, turns).mean(2).float()


class Centres(Gathering):
    """Statistics for a profile: mean query before RoPE, mean length of its channel pairs, rotation.

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
    """Return the rotation, or one of no channels where a model has none."""
    return no_rotation(like.device) if rotation is None else rotation.to(like.device)


GATHERINGS["triattention"] = Centres()


@method("mao2026triattention", adds=("score", "when"))
def triattention(
    *, budget: Amount, profile: str, recent: Recent = 0, every: Positive = 128
) -> Policy:
    """Keys at distances that a head's queries prefer, also while answering; needs no query.

    Defaults:
        release, which for vLLM also keeps the last 128 tokens
    """
    return Policy(
        score=DistancePreference(profile=profile),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
        when=OverBudget(every=every),
    )
