"""Statistical leverage: how much a key is an outlier among all keys of its head."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.parameters import Columns, Count, Seed
from foveate.policies.spec import stage
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.token_span import Over, best, span, standardised

RIDGE = 1e-2


@stage("leverage")
class Leverage(WithoutQueries):
    """Diagonal of X (X^T X + I/100)^-1 X^T, where X are a head's centred keys.

    X is first multiplied by a random Gaussian matrix of ``sketch`` columns (None: the exact keys),
    which follows from ``seed`` and is the same for all heads of a layer. The scores are
    standardised over the heads of a layer or each head by itself (``over``).

    The first ``sinks`` and the last ``recent`` tokens are left out of all that, and score highest.

    Keys are those after RoPE, which layers store; the paper's are those before.

    Source: Compactor (arXiv:2507.08143), approximate leverage scores, and kvpress.
    """

    sketch: Columns | None = 48
    sinks: Count = 0
    recent: Count = 0
    over: Over = "layer"
    seed: Seed = 0

    @property
    def head_by_head(self) -> bool:
        return self.over == "head"

    def __call__(self, layer: Layer) -> Scores:
        part = span(layer.slots, self.sinks, self.recent)
        keys, inside = part.take(layer.k).float(), part.inside
        drawn = None if self.sketch is None else self._drawn(layer, self.sketch)
        values = standardised(leverage(keys, inside, drawn), inside, self.over)
        return Scores(part.put(values, best(values)))

    def _drawn(self, layer: Layer, columns: int) -> Float[Tensor, "d s"]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + layer.ordinal)
        channels = layer.k.shape[-1]
        shape, where = (channels, columns), generator.device
        drawn = torch.randn(shape, generator=generator, dtype=torch.float32, device=where)
        drawn = drawn / math.sqrt(columns)
        if columns > channels:  # scores depend on S S^T alone, and this root of it is as good
            drawn = torch.linalg.cholesky(drawn.double() @ drawn.T.double()).float()
        return drawn.to(layer.k.device)


def leverage(
    k: Float[Tensor, "b h l d"],
    inside: Bool[Tensor, "b h l"],
    sketch: Float[Tensor, "d s"] | None,
) -> Float[Tensor, "b h l"]:
    """Return the leverage of the keys inside, in float32.

    The linear system is solved in float64, as keys of large norms would otherwise drown the ridge.
    """
    real = inside[..., None]
    mean = k.masked_fill(~real, 0.0).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
    x = (k - mean).masked_fill(~real, 0.0)
    if sketch is not None:
        x = x @ sketch
    wide = x.double()
    gram = wide.transpose(2, 3) @ wide
    ridge = gram.diagonal(dim1=2, dim2=3).sum(-1).mul(1e-12).clamp_min(RIDGE)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # where that fails (sums overflow) the scores are NaN, for which the caller names the layer
    root, failed = torch.linalg.cholesky_ex(gram + ridge[..., None, None] * eye)
    inverse = torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)
    whitened: Tensor = wide @ inverse.transpose(2, 3)
    scores = whitened.square().sum(-1).float()
    return scores.masked_fill((failed > 0)[..., None], torch.nan)
