"""CriticalKV: what changes the attention's output most, by attention times projected value.

Half of the budget goes by another score alone, the rest by that score times the L1 norm of the
value after the output projection W_o. ``criticalkv+adakv`` is the paper's CriticalAdaKV, and
``criticalkv+adakv:floor=0.2,guaranteed=true`` that of kvpress; any score can stand in for SnapKV's
(``expected_attention+criticalkv``), best one that is not below zero.

Departs from kvpress in: the projected norms, which are in float32, and the window, which is kept
also where half of the budget does not hold it. The output projection is read off the model
(``Layer.output_weight``): its bias, and what a model does between attention and projection (gates,
norms), are left out, as there.

All values are projected once more, which is the work of the layer's own output projection: a
prefill of 2,048 tokens takes 1.14 to 1.20 of stock on two cores.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidInput, InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Factor, Kernel, Share, Window
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention, highest
from foveate.stages.recent import part
from foveate.stages.score.bases import Wrapper

SLOTS = 256
"""Slots projected at once: their products stay in a core's cache (0.56 of the time of 1024)."""


@stage("output_norm", head_by_head=True, reads_output_weight=True)
class OutputNorm(Wrapper):
    """Another score, with a part "output": (score + ``epsilon``) times the L1 norm of the value
    after the output projection, the mean over the query heads of a KV head. In float32.

    Source: CriticalKV (arXiv:2502.03805), and CriticalKVPress of kvpress.
    """

    epsilon: Factor = 1e-4

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        output = (inner.values.float() + self.epsilon) * projected_norm(layer)
        return inner._replace(parts={**inner.parts, "output": output})


def projected_norm(layer: Layer) -> Float[Tensor, "b h n"]:
    """The mean of |W_o v| over the query heads of a KV head; zero at padding.

    Raises:
        InvalidInput: the layer came without its output projection.
    """
    if layer.output_weight is None:
        raise InvalidInput(
            f"layer {layer.number} came without its output projection, by which this policy weighs "
            "values. Pass output_weights= to compress_tensors(), one [hq, e, hidden] per layer."
        )
    v = layer.v.masked_fill(~layer.valid[..., None], 0.0)
    total = v.new_zeros(v.shape[:3], dtype=torch.float32)
    for head, weight in enumerate(layer.output_weight.to(v.device)):
        of_kv = head // layer.groups
        for first in range(0, v.shape[2], SLOTS):
            some = slice(first, first + SLOTS)
            total[:, of_kv, some] += (v[:, of_kv, some].float() @ weight.float()).abs().sum(-1)
    return total / layer.groups


@stage("two_stage", head_by_head=True)
class TwoStage(TopK):
    """Beside what ``top_k`` always keeps, which counts in the first stage: of each head's number,
    ``first`` (rounded down), and at least ``floor`` of an even share, to the highest scores, all
    others to the highest part "output".

    Source: CriticalKV (arXiv:2502.03805), and CriticalKVPress of kvpress.
    """

    first: Share = 0.5
    floor: Share = 0.0

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "output" not in scored.scores.parts:
            raise InvalidParameter(
                f"{self!r} draws on what values do to the output, and this score does not tell. "
                "Use it with score=output_norm(of=...)."
            )
        values = scored.scores.values
        floor = part(scored.tokens, self.floor)[:, None].minimum(counts)
        early = highest(values, part(counts, self.first).maximum(floor))
        output = scored.scores.parts["output"].masked_fill(values == -torch.inf, -torch.inf)
        return highest(output.masked_fill(early | (values == torch.inf), torch.inf), counts)


@method("feng2025criticalkv", wraps=True)
def criticalkv(
    *,
    budget: Amount,
    first: Share = 0.5,
    floor: Share = 0.0,
    epsilon: Factor = 1e-4,
    window: Window = 32,
    kernel: Kernel = 5,
    pool: Pool = "avg",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, then what the output would miss most.

    ``first`` is the share of the budget that goes by attention alone; where heads keep different
    numbers, at least ``floor`` of the budget does.

    Args:
        first: Share of the budget that goes by attention alone.
        floor: The least that does, as a share of an even budget.

    Defaults:
        release; its SnapKV has this window and kernel
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    return Policy(
        score=OutputNorm(of=attention, epsilon=epsilon),
        budget=Uniform(amount=budget),
        select=TwoStage(recent=window, first=first, floor=floor),
    )
