"""Similarity of the keys, and of the values, of each head (MixKV, Figs. 1 b, 2 and 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foveate.methods.mixkv import redundancy
from foveate_lab.eval.answering.analyses import rows_of
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.tables.table import Row
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt

BINS = 40
ALL = (-1.0, 1.0)  # range of a cosine, which is below 0 where keys of a head point apart


@dataclass(frozen=True)
class Similarity(Measure):
    """Mean cosine of all pairs of different keys of a head, and of its values."""

    name = "similarity"

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return ``keys`` and ``values`` [layers, heads]."""
        layers = seen.recording.layers
        return {
            "keys": rows_of(redundancy(layer.k[:1], layer.valid[:1])[0] for layer in layers),
            "values": rows_of(redundancy(layer.v[:1], layer.valid[:1])[0] for layer in layers),
        }

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Figure]:
        """Yield a map of the heads' keys, and the distribution of all values."""
        keys, values = (np.array([row[name] for row in rows]) for name in ("keys", "values"))
        where = f"{model}, {task}, {len(rows)} sample{'s' if len(rows) > 1 else ''}"
        yield Figure(
            f"Similarity of keys by head: {where}",
            _map(keys.mean(0)),
            "The mean cosine of all pairs of different keys.",
        )
        yield Figure(
            f"Similarity of keys and values: {where}",
            _distribution(keys, values),
            f"Keys are most often at {_peak(keys)}, values at {_peak(values)}; all heads, all "
            "samples.",
        )


def _map(mean: Any) -> str:
    figure, axis = axes()
    drawn = axis.imshow(
        mean.T,
        cmap="cividis",
        vmin=min(0.0, float(mean.min())),
        vmax=1,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    axis.set(xlabel="layer", ylabel="KV head")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.grid(visible=False)
    figure.colorbar(drawn, label="mean cosine of its keys")
    return svg(figure)


def _distribution(keys: Any, values: Any) -> str:
    figure, axis = axes()
    for tensor, name in ((keys, "keys"), (values, "values")):
        counts, edges = np.histogram(tensor, BINS, ALL)
        axis.stairs(100 * counts / counts.sum(), edges, label=name, fill=True, alpha=0.45)
    axis.set(xlabel="mean cosine in a head", ylabel="share of the heads, %")
    axis.set_xlim(min(0.0, float(min(keys.min(), values.min()))), 1)
    axis.legend(frameon=False, fontsize=8)
    return svg(figure)


def _peak(values: Any) -> str:
    counts, edges = np.histogram(values, BINS, ALL)
    bin_index = int(counts.argmax())
    return f"{edges[bin_index]:.2f} to {edges[bin_index + 1]:.2f}"
