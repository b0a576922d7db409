"""SimLayerKV: lazy layers, which attend to sinks and recent tokens alone, keep only these.

Difference from the paper and from kvpress: there all layers are lazy that pay more than a threshold
to sinks and recent tokens (Llama-3 0.9, Qwen 0.85), whatever is then kept; here the budget sets
their number exactly. The layers that pay least to these tokens are filled with the whole prompt,
one after the other, until the budget is used up; the last of them may keep a part of it, the most
recent tokens. So the full cache is stored until all layers have been read. Each row of a batch has
its own lazy layers. ``recent`` is half of the budget by default; the release's is 1024 tokens,
which many budgets do not hold.

Difference from the release: the prompt's last query identifies lazy layers, where the release takes
the query of the first decoded token. Difference from kvpress: the last queries' own tokens count as
recent, as in the release.
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
from foveate.stages.budget.exact_totals import by_layer
from foveate.stages.recent import is_recent
from foveate.stages.score.window import paid_on_average


@stage("laziness")
class Laziness:
    """Another score, with a note "lazy": the attention share of both ends of the prompt.

    It is the attention of the last ``last`` queries to the first ``sinks`` and the last ``recent``
    tokens, the mean over queries and heads.

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
    """Budget that fills layers with the whole prompt, in ascending order of a note of the score.

    ``of`` names the note. The other layers keep only protected tokens. Heads of a layer keep the
    same number.

    Source: SimLayerKV (arXiv:2410.13846), with a budget instead of its threshold.
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
        """Return upper bounds from the layers so far: later layers can only reduce their counts."""
        depth = -(-heads // min(scored_layer.available.shape[1] for scored_layer in scored))
        counts = torch.stack(self._wished(scored, tokens, depth)).unbind(1)
        return [
            count[:, None].to(scored_layer.available.device).expand_as(scored_layer.available)
            for count, scored_layer in zip(counts, scored, strict=True)
        ]

    def _wished(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], depth: int
    ) -> list[Int[Tensor, "L"]]:
        """Return each row's tokens of these layers, out of the budget of ``depth`` layers."""
        if any(self.of not in scored_layer.scores.notes for scored_layer in scored):
            raise InvalidParameter(
                f"the budget fill_layers(of={self.of}) needs a score that notes {self.of!r} of "
                "every layer, as laziness(of=...) does."
            )
        notes = torch.stack(
            [scored_layer.scores.notes[self.of].cpu() for scored_layer in scored], dim=1
        )
        room = torch.stack(
            [scored_layer.available.amin(-1).cpu() for scored_layer in scored], dim=1
        )
        least = torch.stack(
            [scored_layer.protected.amax(-1).cpu() for scored_layer in scored], dim=1
        )
        rows = zip(notes, least.minimum(room), room, tokens.tolist(), strict=True)
        return [_filled(*row[:3], row[3] * depth) for row in rows]


def _filled(
    notes: Float[Tensor, "L"], least: Int[Tensor, "L"], room: Int[Tensor, "L"], total: int
) -> Int[Tensor, "L"]:
    counts = least.clone()
    left = max(0, total - int(counts.sum()))
    for layer in notes.argsort(stable=True).tolist():
        more = min(left, int(room[layer] - counts[layer]))
        counts[layer] += more
        left -= more
    return counts


@method("zhang2024simlayerkv", adds=("score", "budget", "select"), wraps=True)
def simlayerkv(
    *, budget: Amount, sinks: Count = 4, recent: Recent = 0.5, last: Positive = 1
) -> Policy:
    """Whole prompt in some layers; sinks and recent tokens in lazy layers.

    ``recent`` is a number of tokens or a share of the budget. The last ``last`` queries identify
    lazy layers.

    Args:
        last: Number of last queries that identify lazy layers, e.g. 1.

    Defaults:
        `sinks`, `last`: release and kvpress; `recent`: here, the release has 1,024 tokens, which
        many budgets do not hold
    """
    return Policy(
        score=Laziness(of=Recency(), sinks=sinks, recent=recent, last=last),
        budget=FillLayers(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
