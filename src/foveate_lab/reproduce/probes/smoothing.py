"""Effect of n-softmax on attention within and across modalities (CSP, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foveate.ops.softmax_n import softmax_n
from foveate_lab.eval.answering.analyses import rows_of
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.tables.table import Row
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt

MOST = 200  # weights in the drawing, the largest first


@dataclass(frozen=True)
class Smoothing(Measure):
    """Weights of the last query in the head that attends most to the other modality, and in the one
    that attends least, by softmax and by n-softmax over the kept share ``keep``: Q and Q~ of CSP
    eqs. 9 and 10.
    """

    n: float = 1.0
    keep: float = 0.2

    @property
    def name(self) -> str:
        """Name of the rows, with n and the kept share."""
        return f"n-softmax of {self.n:g} over {self.keep:g}"

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return the sorted weights of both heads, by softmax and by n-softmax."""
        vision = seen.prompt.vision
        heads = [head for layer in seen.recording.layers for head in _logits(layer)]
        across = [float(head.softmax(-1)[vision.to(head.device)].sum()) for head in heads]
        curves = {}
        for name, head_index in (
            ("cross", int(np.argmax(across))),
            ("self", int(np.argmin(across))),
        ):
            kept = heads[head_index].topk(max(1, round(self.keep * len(heads[head_index])))).values
            curves[name] = rows_of(softmax_n(kept, n)[:MOST] for n in (0.0, self.n))
        return curves

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Figure]:
        """Yield both heads of the first sample."""
        figure, grid = axes(columns=2)
        for axis, name in zip(grid, ("cross", "self"), strict=True):
            for weights, label in zip(
                rows[0][name], ("softmax", f"softmax, n = {self.n:g}"), strict=True
            ):
                axis.plot(weights, linewidth=1.4, label=label)
            axis.set(xlabel="kept tokens", ylabel="weight", yscale="log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.tick_params(which="minor", labelleft=False)
            axis.set_title(f"most {name}-attention", fontsize=8)
            axis.legend(frameon=False, fontsize=7)
        yield Figure(
            f"n-softmax: {model}, {task}",
            svg(figure),
            f"Weights of the last query over the {self.keep:.0%} it pays most to, sample "
            f"{rows[0]['sample']}.",
        )


def _logits(layer: Any) -> Tensor:
    """Return the last query's logits, [query heads, keys]."""
    keys = layer.k[0].repeat_interleave(layer.groups, 0).float()
    logits: Tensor = layer.scale * (keys @ layer.q[0, :, -1].float()[..., None])[..., 0]
    return logits
