"""Map of one head's keys, with those that policies keep (MixKV, Figs. 3 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foveate.compression.composition import policy as policy_of
from foveate.hf import branch, compress
from foveate.hf.layer.support import foveate_layers
from foveate.pictures.strips import PALETTE
from foveate_lab.eval.answering.analyses import plane, rows_of
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.probes.numbers import even_indices
from foveate_lab.reproduce.probes.tsne import tsne
from foveate_lab.reproduce.tables.table import Row
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt

MOST = 700  # keys in the drawing; of longer prompts so many, evenly spaced
WAYS: dict[str, Callable[[Tensor], Tensor]] = {"t-SNE": tsne, "principal components": plane}


@dataclass(frozen=True)
class Coverage(Measure):
    """Keys of a head in two dimensions, and which of them each policy keeps. ``layer`` and ``head``
    are those of the paper's model; a smaller model uses its last ones.
    """

    policies: tuple[str, ...]
    layer: int
    head: int
    by_modality: bool = False

    @property
    def name(self) -> str:
        """Name of the rows, with the head and the policies."""
        return f"coverage of layer {self.layer}, head {self.head} by {' and '.join(self.policies)}"

    def specs(self) -> Sequence[str]:
        """Return the compared policies."""
        return self.policies

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return the keys' coordinates by both methods, which are image tokens, and which are
        kept.
        """
        layers = seen.recording.layers
        layer = min(self.layer, len(layers) - 1)
        head = min(self.head, layers[layer].k.shape[1] - 1)
        keys = layers[layer].k[0, head].float().cpu()
        indices = even_indices(len(keys), MOST)
        kept = {}
        for spec in self.policies:
            with compress(seen.loaded.model, policy_of(spec), strict=True) as session:
                pairs = foveate_layers(branch(session, seen.recording))[layer].pairs
            kept_keys = {int(x) for x in pairs.columns[0, head] if x >= 0}
            kept[spec] = [
                position for position, key in enumerate(indices.tolist()) if key in kept_keys
            ]
        return {
            "layer": layer,
            "head": head,
            "places": {name: rows_of(way(keys[indices])) for name, way in WAYS.items()},
            "image": seen.prompt.vision[indices].int().tolist(),
            "kept": kept,
        }

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Figure]:
        """Yield one picture for each sample and method: all keys, and those that each policy
        keeps.
        """
        for row in rows:
            for way, points in row["places"].items():
                yield Figure(
                    f"Kept keys among all keys, {way}: {model}, {task}, sample {row['sample']}",
                    self._drawn(row, np.array(points)),
                    f"Layer {row['layer']}, KV head {row['head']}. Grey is every key; "
                    + ("blue text and orange image tokens." if self.by_modality else "blue kept."),
                )

    def _drawn(self, row: Row, points: Any) -> str:
        titles = {"full cache": list(range(len(points))), **row["kept"]}
        figure, grid = axes(columns=len(titles))
        image = np.array(row["image"], dtype=bool)
        for axis, (spec, kept) in zip(grid, titles.items(), strict=True):
            chosen = np.zeros(len(points), dtype=bool)
            chosen[kept] = True
            axis.scatter(*points.T, s=4, color=PALETTE[7], alpha=0.6, linewidths=0)
            if self.by_modality:
                axis.scatter(*points[chosen & ~image].T, s=6, color=PALETTE[0], linewidths=0)
                axis.scatter(*points[chosen & image].T, s=6, color=PALETTE[1], linewidths=0)
            else:
                axis.scatter(*points[chosen].T, s=6, color=PALETTE[0], linewidths=0)
            axis.set(xticks=[], yticks=[])
            axis.set_title(spec.partition(":")[0], fontsize=8)
        return svg(figure)
