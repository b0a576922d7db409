"""H2O's score: attention received from all queries."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.column_sums import column_sums
from foveate.policies.spec import stage
from foveate.stages.score.attention_rows import Reduction, over_group
from foveate.stages.score.bases import WithoutQueries


@stage("column_sums", head_by_head=True, reads_column_sums=True, slotwise=True)
class ColumnSums(WithoutQueries):
    """Sum over all queries of the causal softmax in float32, reduced over query heads.

    The reduction is over the query heads of a KV head. Queries of later passes (chunks of a prompt,
    decoding) are added.

    Source: H2O (arXiv:2306.14048), section 4; LOOK-M eq. 4.
    """

    group: Reduction = "mean"

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Add the attention of this pass's queries."""
        sums = _sums(layer) if layer.column_sums is None else layer.column_sums
        b, hq, n = sums.shape
        received = over_group(sums.view(b, hq // layer.groups, layer.groups, n), self.group)
        return {"received": layer.state.get("received", 0) + received}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["received"])


def _sums(layer: Layer) -> Float[Tensor, "b hq n"]:
    holes = layer.slots.mask is None and bool((layer.pos[:, :1] != layer.pos).any())
    mask = layer.slots.visible(layer.q.shape[2]) if holes else layer.slots.mask
    pads = None if holes else (layer.pos[:, 0] < 0).sum(-1).tolist()
    return column_sums(layer.q, layer.k, layer.scale, mask, pads)
