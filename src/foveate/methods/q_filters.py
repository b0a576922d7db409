"""Q-Filters: keys aligned with their heads' queries, measured on a model beforehand.

``profile`` contains the filters: ``foveate calibrate q_filters`` measures them. Differences from
the authors' code: all queries of the prompts are decomposed, where the release draws 3,000 of them;
the sign is the paper's, that of the sum of all projections, where the release takes the sign of
most projections; filters are stored as in the paper, where the release stores them negated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.moments import moments
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import GATHERINGS, Gathering, Sums
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Recent
from foveate.stages import TopK, Uniform
from foveate.stages.score.bases import ByProfile


@stage("query_filter")
class QueryFilter(ByProfile):
    """Dot product of the key and its head's filter, in float32.

    ``profile`` is a file of filters.

    Source: Q-Filters (arXiv:2503.02812), section 3.
    """

    method = "q_filters"

    def __call__(self, layer: Layer) -> Scores:
        heads, channels = layer.k.shape[1], layer.k.shape[3]
        (filters,) = self.calibrated.of(layer, filters=(heads, channels))
        return Scores((layer.k.float() * filters.float()[:, None]).sum(-1))


class MainDirections(Gathering):
    """Filters for a profile: the main direction of each head's queries.

    A query head's filter is the first right singular vector of its queries, with the sign that
    makes the sum of their projections positive; a KV head's filter is the mean over its query
    heads.

    Source: Q-Filters, section 3.
    """

    names: ClassVar[tuple[str, ...]] = ("filters",)

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        return moments(layer.q, layer.q_pos >= 0, layer.groups)

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        first = torch.linalg.eigh(sums["products"]).eigenvectors[..., -1]
        sign = (first * sums["total"]).sum(-1, keepdim=True).sign()
        directions = torch.where(sign < 0, -first, first)
        return {"filters": directions.mean(1).float()}


GATHERINGS["q_filters"] = MainDirections()


@method("godey2025qfilters")
def q_filters(*, budget: Amount, profile: str, recent: Recent = 0) -> Policy:
    """Keys aligned with the main direction of their heads' queries; needs no attention.

    Score: the dot product of key and filter (section 3).

    Defaults:
        no parameter in the paper
    """
    return Policy(
        score=QueryFilter(profile=profile),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
    )
