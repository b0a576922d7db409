"""SimLayerKV: lazy layers, which look at sinks and recent tokens alone, keep only these.

Departs from the paper, and from kvpress, in how many layers are lazy: there all that pay more than
a threshold to sinks and recent tokens (Llama-3 0.9, Qwen 0.85), whatever is then kept; here the
budget says it exactly. The layers that pay least to them are filled with the whole prompt, one
after the other, until the budget is used up; the last of them may hold a part of it, the most
recent tokens. So the full cache is held until all layers have been read. Each row of a batch has
its own lazy layers, as alone. ``recent`` is half of the budget by default; the release's is 1024
tokens, which many budgets do not hold.

Departs from the release in when layers are told apart: by the prompt's last query, where it takes
that of the first decoded token. Departs from kvpress in the last queries' own tokens, which count
as recent, as in the release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Positive, Recent
from foveate.policies.protocols import Scope, Score
from foveate.stages import Recency, TopK
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact import by_layer
from foveate.stages.recent import is_recent
from foveate.stages.score.window import paid_on_average


@stage("laziness")
class Laziness:
    """Another score, with a note "lazy": of what the last ``last`` queries pay, the share that goes
    to the first ``sinks`` and the last ``recent`` tokens, the mean over queries and heads.

    Source: SimLayerKV (arXiv:2410.13846), and its release.
    """

    of: Score
    sinks: Count = 4
    recent: Recent = 0.5
    last: Positive = 1

    def queries(self, tokens: int) -> int:
        return max(self.last, self.of.queries(tokens))

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        ends = is_recent(layer.slots, self.recent) | (layer.pos < self.sinks)
        paid = paid_on_average(layer, self.last).mean
        lazy = paid.masked_fill(~(ends & layer.valid), 0.0).sum(-1).mean(-1)
        return inner._replace(notes={**inner.notes, "lazy": lazy})


@stage("fill_layers")
class FillLayers(AmountBudget):
    """Every layer keeps what is protected; in ascending order of a note of the score, ``of``,
    layers keep all of the prompt, until the budget is used up. Heads of a layer keep the same.

    Source: SimLayerKV (arXiv:2410.13846), with a budget in the place of its threshold.
    """

    of: str = "lazy"
    scope: Scope = field(default="model", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wished = self._wished(scored, tokens, len(scored))
        return by_layer(scored, torch.stack(wished), tokens)

    def at_most(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int
    ) -> list[Int[Tensor, "b h"]]:
        """As many as each layer has among those so far: layers to come can only go before it."""
        depth = -(-heads // min(one.available.shape[1] for one in scored))
        most = torch.stack(self._wished(scored, tokens, depth)).unbind(1)
        return [
            each[:, None].to(one.available.device).expand_as(one.available)
            for each, one in zip(most, scored, strict=True)
        ]

    def _wished(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], depth: int
    ) -> list[Int[Tensor, "L"]]:
        """Of each row, what these layers keep of the budget of ``depth`` layers."""
        if any(self.of not in one.scores.notes for one in scored):
            raise InvalidParameter(
                f"the budget fill_layers(of={self.of}) needs a score that notes {self.of!r} of "
                "every layer, as laziness(of=...) does."
            )
        notes = torch.stack([one.scores.notes[self.of].cpu() for one in scored], dim=1)
        room = torch.stack([one.available.amin(-1).cpu() for one in scored], dim=1)
        least = torch.stack([one.protected.amax(-1).cpu() for one in scored], dim=1)
        rows = zip(notes, least.minimum(room), room, tokens.tolist(), strict=True)
        return [_filled(*row[:3], row[3] * depth) for row in rows]


def _filled(
    notes: Float[Tensor, "L"], least: Int[Tensor, "L"], room: Int[Tensor, "L"], total: int
) -> Int[Tensor, "L"]:
    counts = least.clone()
    left = max(0, total - int(counts.sum()))
    for place in notes.argsort(stable=True).tolist():
        more = min(left, int(room[place] - counts[place]))
        counts[place] += more
        left -= more
    return counts


@method("zhang2024simlayerkv", adds=("score", "budget", "select"), wraps=True)
def simlayerkv(
    *, budget: Amount, sinks: Count = 4, recent: Recent = 0.5, last: Positive = 1
) -> Policy:
    """Keeps the whole prompt in some layers, and its two ends in those that look at little else.

    ``recent`` is a number of tokens or a share of the budget; ``last`` queries tell lazy layers.

    Args:
        last: The last queries, which tell lazy layers.

    Defaults:
        `sinks`, `last`: release and kvpress; `recent`: here, the release has 1,024 tokens, which
        many budgets do not hold
    """
    return Policy(
        score=Laziness(of=Recency(), sinks=sinks, recent=recent, last=last),
        budget=FillLayers(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
