"""Expected Attention: attention that future queries are expected to pay, from a model of queries.

Difference from the authors' code: by default the queries are the last ones of the prompt as they
are, with their rotary positions. With ``profile`` they are those of the release: the mean and
covariance of a model's queries before RoPE, over texts and without the first four tokens of each,
rotated by the mean rotation of the next ``future`` positions. ``foveate calibrate
expected_attention`` measures them on queries whose rotation it inverts. Positions are counted in
tokens, which is wrong after an image for models whose positions run in images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidInput
from foveate.ops.moments import moments
from foveate.ops.rotation import Rotation, mean_rotation, no_rotation, turned
from foveate.policies.gathering import GATHERINGS, TURNS, Gathering, Sums, as_tensors, check_text
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Factor, Positive, Range
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from foveate.stages import TopK, Uniform

Future = Annotated[int, Range(1, 65_536)]
OUTLIERS = 4
"""Number of first tokens of a text whose queries are left out of the statistics."""


@stage("expected_attention")
class ExpectedAttention:
    """Expectation of exp(logit) over normally distributed queries, times the value's norm.

    The expectation is normalised over the slots except the first ``sinks``, averaged over the query
    heads of a KV head, and ``epsilon`` is added before the value's norm is multiplied in. The mean
    and (with ``covariance``) the covariance are those of the last ``window`` queries, or those of a
    ``profile``, rotated to the ``future`` positions after the prompt.

    Source: Expected Attention (arXiv:2510.00636), section 3.
    """

    window: Positive = 256
    covariance: bool = True
    epsilon: Factor = 0.0
    value_norm: bool = True
    profile: str | None = None
    future: Future = 512
    sinks: Count = 0

    def __post_init__(self) -> None:
        _ = self.calibrated

    @property
    def head_by_head(self) -> bool:
        return self.profile is None  # a profile has statistics of all heads of a layer

    @property
    def calibrated(self) -> TensorProfile | None:
        """Profile in use, if any."""
        return None if self.profile is None else load_tensors(self.profile, "expected_attention")

    def queries(self, tokens: int) -> int:
        return self.window if self.profile is None else 0

    def __call__(self, layer: Layer) -> Scores:
        logits = self._expected(layer)
        logits = logits.masked_fill(~self._counted(layer)[:, :, None], -torch.inf)
        scores = logits.softmax(-1).mean(2) + self.epsilon
        return Scores(scores * layer.v.float().norm(dim=-1) if self.value_norm else scores)

    def _counted(self, layer: Layer) -> Bool[Tensor, "b h n"]:
        """Mark the slots that scores are normalised over; all of a row that has only sinks."""
        if not self.sinks:
            return layer.valid
        counted = layer.valid & (layer.pos >= self.sinks)
        return counted | (layer.valid & ~counted.any(-1, keepdim=True))

    def _expected(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        """Return log E exp(scale q k): scale mean k + scale^2 / 2 k covariance k."""
        profile = self.calibrated
        mean, spread = self._last(layer) if profile is None else self._stored(layer, profile)
        k = layer.k.float()
        logits = layer.scale * (mean @ k.transpose(2, 3))
        if spread is None:
            return logits
        # one query head at a time: the products of a whole group take many times the keys' memory
        quadratic = [(k @ covariance).mul_(k).sum(-1) for covariance in spread.unbind(2)]
        return logits + 0.5 * layer.scale**2 * torch.stack(quadratic, dim=2)

    def _last(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """Return mean [b h g d] and covariance [b h g d d] of the last queries."""
        b, hq, m, d = layer.q.shape
        w, h = min(self.window, m), layer.k.shape[1]
        real = (layer.q_pos[:, -w:] >= 0).float()[:, None, None, :, None]
        q = layer.q[:, :, -w:].float().view(b, h, hq // h, w, d)
        count = real.sum(3).clamp_min(1)
        mean = (q * real).sum(3) / count
        if not self.covariance:
            return mean, None
        centred = (q - mean[:, :, :, None]) * real
        return mean, centred.transpose(3, 4) @ centred / count[..., None]

    def _stored(self, layer: Layer, profile: TensorProfile) -> tuple[Tensor, Tensor | None]:
        """Return the profile's mean and covariance, rotated to the positions after the prompt."""
        hq, d = layer.q.shape[1], layer.k.shape[3]
        mean, spread = profile.of(layer, mean=(hq, d), covariance=(hq, d, d))
        rotation = profile.rotation(layer)
        turn = mean_rotation(layer.lengths, self.future, d, rotation)[:, None, None]
        mean = mean.double().view(-1, layer.groups, d)
        spread = spread.double().view(-1, layer.groups, d, d)
        later = (turn @ mean[..., None])[..., 0].float()
        return later, (turn @ spread @ turn.mT).float() if self.covariance else None


class StoredStatistics(Gathering):
    """Mean and covariance of queries before RoPE, and the rotation itself, for a profile.

    The queries of a text's first tokens are left out.

    Source: the release of Expected Attention.
    """

    turns_back: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("mean", "covariance", *TURNS)

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        check_text(layer)
        q = layer.q
        if rotation is not None:
            q = turned(q, -layer.q_pos[:, None], rotation.to(q.device))
        return moments(q, layer.q_pos >= OUTLIERS, layer.groups)

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        count = sums["count"]
        if count < 2:
            raise InvalidInput(
                f"only {int(count)} queries are left to calibrate on, as the first {OUTLIERS} of "
                "each prompt do not count. Give longer prompts."
            )
        mean = sums["total"] / count
        products = sums["products"] - count * mean[..., :, None] * mean[..., None, :]
        turns = no_rotation(mean.device) if rotation is None else rotation
        return {
            "mean": mean.flatten(0, 1).float(),
            "covariance": (products / (count - 1)).flatten(0, 1).float(),
            **as_tensors(turns),
        }


GATHERINGS["expected_attention"] = StoredStatistics()


@method("devoto2025expected")
def expected_attention(
    *,
    budget: Amount,
    window: Positive = 256,
    covariance: bool = True,
    epsilon: Factor = 0.0,
    sinks: Count = 4,
    profile: str | None = None,
    future: Future = 512,
) -> Policy:
    """Tokens that future queries are expected to attend to, weighted by the value's norm.

    Score: E exp(scale q k) for q ~ N(mean, covariance), normalised over slots, times |v| (section
    3).

    Args:
        window: Number of last queries that the statistics are taken from without a profile.
        covariance: Use the queries' covariance in addition to their mean.
        future: Number of positions after the prompt that queries are rotated to.

    Defaults:
        kvpress; `window`: here, it keeps its queries in a profile instead
    """
    return Policy(
        score=ExpectedAttention(
            window=window,
            covariance=covariance,
            epsilon=epsilon,
            profile=profile,
            future=future,
            sinks=0 if profile is None else sinks,
        ),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks),
    )
