"""Text and image tokens in two dimensions, layer by layer (DAVID, Fig. 1 c)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foveate.pictures.strips import PALETTE
from foveate_lab.eval.answering.analyses import rows_of
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.probes.numbers import even_indices
from foveate_lab.reproduce.probes.tsne import tsne
from foveate_lab.reproduce.tables.table import Row
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt

MOST = 300  # tokens of either modality in the drawing
SHOWN = 4  # layers in the drawing, evenly from the first to the last


@dataclass(frozen=True)
class TokenMap(Measure):
    """Keys of all heads of a token as one point, by t-SNE."""

    name = "token map"

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return ``places`` [layers, tokens, 2] of some layers, and which tokens are of images."""
        layers, vision = seen.recording.layers, seen.prompt.vision
        chosen = torch.cat([_some(vision.nonzero()[:, 0]), _some((~vision).nonzero()[:, 0])])
        layer_indices = [round(x * (len(layers) - 1) / (SHOWN - 1)) for x in range(SHOWN)]
        points = [
            layers[index].k[0][:, chosen].transpose(0, 1).flatten(1) for index in layer_indices
        ]
        return {
            "layers": layer_indices,
            "places": rows_of(tsne(keys.float().cpu()) for keys in points),
            "image": vision[chosen].int().tolist(),
        }

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Figure]:
        """Yield the layers of the first sample side by side."""
        row = rows[0]
        figure, grid = axes(columns=len(row["layers"]))
        image = np.array(row["image"], dtype=bool)
        for axis, layer, points in zip(grid, row["layers"], np.array(row["places"]), strict=True):
            axis.scatter(*points[~image].T, s=5, color=PALETTE[0], linewidths=0)
            axis.scatter(*points[image].T, s=5, color=PALETTE[1], linewidths=0)
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"layer {layer}", fontsize=8)
        yield Figure(
            f"Text and image tokens: {model}, {task}",
            svg(figure),
            f"t-SNE of the keys of all heads, sample {row['sample']}: blue text, orange image.",
        )


def _some(indices: torch.Tensor) -> torch.Tensor:
    """Return at most ``MOST`` of these indices, evenly."""
    return indices[even_indices(len(indices), MOST)]
