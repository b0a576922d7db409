"""Similarity of each pair of one head's keys (MixKV, Fig. 1 a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.nn.functional import normalize

from foveate_lab.eval.answering.analyses import rows_of
from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.reproduce.probes.numbers import even_indices
from foveate_lab.reproduce.tables.table import Row
from foveate_lab.reproduce.trials.probe import Measure, ProbedPrompt

MOST = 160  # keys in the drawing, evenly spaced over the prompt


@dataclass(frozen=True)
class KeyMap(Measure):
    """Cosine of all pairs of keys of a head in the middle layer."""

    head: int = 0

    @property
    def name(self) -> str:
        """Name of the rows, with the head."""
        return f"key map of head {self.head}"

    def of(self, seen: ProbedPrompt) -> dict[str, Any]:
        """Return ``map`` [keys, keys], and the ``layer``."""
        layer = len(seen.recording.layers) // 2
        keys = seen.recording.layers[layer].k[0, self.head]
        indices = even_indices(len(keys), MOST)
        unit = normalize(keys[indices.to(keys.device)].float(), dim=-1)
        return {"map": rows_of(unit @ unit.T), "layer": layer}

    def summarise(self, model: str, task: str, rows: Sequence[Row]) -> Iterator[Figure]:
        """Yield the map of the first sample."""
        figure, axis = axes()
        drawn = axis.imshow(
            np.array(rows[0]["map"]), cmap="cividis", vmin=-1, vmax=1, interpolation="nearest"
        )
        axis.set(xlabel="key", ylabel="key", xticks=[], yticks=[])
        axis.grid(visible=False)
        figure.colorbar(drawn, label="cosine")
        yield Figure(
            f"Similarity of pairs of keys: {model}, {task}",
            svg(figure),
            f"Layer {rows[0]['layer']}, KV head {self.head}, sample {rows[0]['sample']}; from the "
            "prompt's first token (top left) to its last.",
        )
