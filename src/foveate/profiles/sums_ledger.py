"""Sums over samples, in a file, so that a long measurement can go on after a break."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from foveate.policies.gathering import Sums
from foveate.profiles.ledger import SampleLedger
from foveate.profiles.tensor_profile import read_tensors, write_tensors


class SumsLedger(SampleLedger):
    """What samples add up to, layer by layer, in a safetensors file."""

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.by_layer: list[dict[str, Tensor]] = []
        super().__init__(path, heading)

    def add(self, by_layer: Sequence[Sums]) -> None:
        """Add what the sample asked for last has."""
        old = self.by_layer or [{} for _ in by_layer]
        self.by_layer = [
            {name: had[name] + t.cpu() if had else t.cpu() for name, t in new.items()}
            for had, new in zip(old, by_layer, strict=True)
        ]
        self.samples.append(self._next)
        if self.path is not None:
            self._write(self.path)

    def _write(self, path: Path) -> None:
        note = {"heading": json.dumps(self.heading), "samples": json.dumps(self.samples)}
        write_tensors(path, self.by_layer, note)

    def _read(self, path: Path) -> None:
        try:
            note, tensors = read_tensors(path)
            heading, self.samples = json.loads(note["heading"]), json.loads(note["samples"])
            places = {name: name.rpartition(".") for name in tensors}
            layers = 1 + max(int(number) for _, _, number in places.values())
            self.by_layer = [{} for _ in range(layers)]
            for name, (kind, _, number) in places.items():
                self.by_layer[int(number)][kind] = tensors[name]
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise self._of_another(f"it cannot be read: {error!r}") from error
        if heading != self.heading:
            raise self._of_another(f"{heading}, not {self.heading}")
