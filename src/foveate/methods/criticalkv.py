"""CriticalKV: tokens whose loss changes the attention's output most.

Half of the budget is ranked by another score alone, the rest by that score times the L1 norm of the
value after the output projection W_o. ``criticalkv+adakv`` is the paper's CriticalAdaKV, and
``criticalkv+adakv:floor=0.2,guaranteed=true`` is kvpress's. Any score can replace SnapKV's
(``expected_attention+criticalkv``), preferably one that is not below zero.

Differences from kvpress: projected norms are in float32, and the window is kept even where half of
the budget does not hold it. The output projection is read from the model (``Layer.output_weight``).
Its bias, and any gates or norms between attention and projection, are left out, as in kvpress.

All values are projected once more, which costs as much as the layer's own output projection: a
prefill of 2,048 tokens takes 1.14 to 1.20 times as long as without compression on two cores.
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
"""Slots projected at once: their products fit a core's cache (0.56 of the time of 1024)."""


@stage("output_norm", head_by_head=True, reads_output_weight=True)
class OutputNorm(Wrapper):
    """Another score, with a part "output" that weights it by the projected value's norm.

    The part is (score + ``epsilon``) times the L1 norm of W_o v, the mean over the query heads of a
    KV head, in float32.

    Source: CriticalKV (arXiv:2502.03805), and CriticalKVPress of kvpress.
    """

    epsilon: Factor = 1e-4

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        output = (inner.values.float() + self.epsilon) * projected_norm(layer)
        return inner._replace(parts={**inner.parts, "output": output})


def projected_norm(layer: Layer) -> Float[Tensor, "b h n"]:
    """Return the mean of |W_o v| over the query heads of a KV head; zero at padding.

    Raises:
        InvalidInput: the layer has no output projection.
    """
    if layer.output_weight is None:
        raise InvalidInput(
            f"layer {layer.number} has no output projection, which this policy needs to weigh "
            "values. Pass output_weights= to compress_tensors(): one [hq, e, hidden] tensor per "
            "layer."
        )
    v = layer.v.masked_fill(~layer.valid[..., None], 0.0)
    total = v.new_zeros(v.shape[:3], dtype=torch.float32)
    for head, weight in enumerate(layer.output_weight.to(v.device)):
        of_kv = head // layer.groups
        for first in range(0, v.shape[2], SLOTS):
            block = slice(first, first + SLOTS)
            total[:, of_kv, block] += (v[:, of_kv, block].float() @ weight.float()).abs().sum(-1)
    return total / layer.groups


@stage("two_stage", head_by_head=True)
class TwoStage(TopK):
    """Selection in two stages: first the highest scores, then the highest part "output".

    The first stage takes ``first`` of each head's number (rounded down), at least ``floor`` of an
    even share, and counts the tokens that ``top_k`` always keeps.

    Source: CriticalKV (arXiv:2502.03805), and CriticalKVPress of kvpress.
    """

    first: Share = 0.5
    floor: Share = 0.0

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "output" not in scored.scores.parts:
            raise InvalidParameter(
                f"{self!r} needs a score with a part 'output'. Use score=output_norm(of=...)."
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
    """Tokens that the last queries attend to, then those whose loss changes the output most.

    Second stage: (score + epsilon) * |W_o v|_1.

    ``first`` is the share of the budget that attention alone ranks; where heads keep different
    numbers, at least ``floor`` of the budget does.

    Args:
        first: Share of the budget that attention alone ranks, e.g. 0.5.
        floor: Minimum that attention alone ranks, as a share of an even budget.

    Defaults:
        release; its SnapKV has this window and kernel
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    return Policy(
        score=OutputNorm(of=attention, epsilon=epsilon),
        budget=Uniform(amount=budget),
        select=TwoStage(recent=window, first=first, floor=floor),
    )
