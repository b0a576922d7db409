"""Keyformer: heavy hitters under Gumbel noise, so that no token is discarded early.

It runs once after the prefill by default; ``when=over_budget`` is the paper's own rule. The noise
follows from ``seed``; the authors' code draws new noise in every run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Factor, Recent, Seed, Temperature
from foveate.stages import Reduction, TopK, Uniform
from foveate.stages.score.attention_free import gumbel
from foveate.stages.score.attention_rows import blocks, over_group, seen
from foveate.stages.score.bases import WithoutQueries


@stage("gumbel_sums")
class GumbelSums(WithoutQueries):
    """Sum over all queries of softmax((logits + Gumbel noise) / tau), reduced over query heads.

    The reduction is over the query heads of a KV head. ``tau`` grows by ``tau_step`` with every
    decoded token. The noise of a pair of tokens follows from ``seed``, layer, head and their
    positions.

    Source: Keyformer (arXiv:2403.09054), section 3.
    """

    seed: Seed = 0
    tau: Temperature = 1.0
    tau_step: Factor = 0.0
    group: Reduction = "mean"

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Add this pass's attention; a pass of one query counts as a decoded token."""
        zeros = layer.k.new_zeros(layer.pos.shape, dtype=torch.float32)
        steps = layer.state.get("steps", zeros)
        steps = steps.amax((1, 2), keepdim=True) + (layer.q.shape[2] == 1)
        tau = self.tau + self.tau_step * steps[..., None, None]
        received = layer.state.get("received", 0) + over_group(self._sums(layer, tau), self.group)
        return {"received": received, "steps": steps.expand(layer.pos.shape).contiguous()}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["received"])

    def _sums(self, layer: Layer, tau: Float[Tensor, "b 1 1 1 1"]) -> Float[Tensor, "b h g n"]:
        b, _, _, d = layer.q.shape
        h, g = layer.k.shape[1], layer.groups
        total = layer.k.new_zeros(b, h, g, layer.k.shape[2], dtype=torch.float32)
        for block in blocks(layer.q.shape[2]):
            q = layer.q[:, :, block].reshape(b, h, g, -1, d).float()
            logits = q @ layer.k.float()[:, :, None].transpose(3, 4) * layer.scale
            sees = seen(layer, block)[:, :, None]
            logits = (logits + self.noise(layer, block)) / tau
            paid = logits.masked_fill(~sees, -torch.inf).softmax(-1)
            total += paid.masked_fill(~sees, 0.0).sum(3)
        return total

    def noise(self, layer: Layer, block: slice) -> Float[Tensor, "b h g r n"]:
        """Draw the noise of some queries and all slots."""
        h, g = layer.k.shape[1], layer.groups
        heads = torch.arange(h * g, device=layer.k.device).view(1, h, g, 1, 1)
        by_query = layer.q_pos[:, None, None, block, None]
        by_slot = layer.pos[:, :, None, None]
        return gumbel(self.seed, torch.full_like(heads, layer.ordinal), heads, by_query, by_slot)


@method("adnan2024keyformer")
def keyformer(
    *,
    budget: Amount,
    recent: Recent = 0.3,
    seed: Seed = 0,
    tau: Temperature = 1.0,
    tau_step: Factor = 0.0,
    group: Reduction = "mean",
) -> Policy:
    """Tokens that received the most attention under seeded noise, and the most recent tokens.

    Score: sum over queries of softmax((logits + Gumbel noise) / tau), section 3.

    Args:
        tau: Temperature of the noisy softmax.
        tau_step: Increase of the temperature with every generated token.

    Defaults:
        `recent`: 30 %, release; `tau`: its first value, which it raises to 2 while decoding
        (`tau_step`)
    """
    return Policy(
        score=GumbelSums(seed=seed, tau=tau, tau_step=tau_step, group=group),
        budget=Uniform(amount=budget),
        select=TopK(recent=recent),
    )
