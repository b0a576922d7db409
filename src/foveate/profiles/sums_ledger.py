"""Sums over samples, in a file, so that a long measurement can go on after a break."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from foveate.data import files
from foveate.errors import InvalidInput
from foveate.policies.gathering import Sums


class SumsLedger:
    """What samples add up to, layer by layer. Ask :meth:`lacks` for each sample in turn, and
    :meth:`add` its sums if it says so: all of them are on disk when that returns. Without a path
    nothing is written.

    Raises:
        InvalidInput: the file is of another measurement.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.path, self.heading = path, dict(heading)
        self.by_layer: list[dict[str, Tensor]] = []
        self.samples: list[str] = []  # fingerprints
        self._asked = 0
        if path is not None and path.exists():
            self._read(path)

    def lacks(self, sample: str) -> bool:
        """Whether the next sample, of that fingerprint, has to be measured.

        Raises:
            InvalidInput: another sample stands in its place.
        """
        place, self._asked = self._asked, self._asked + 1
        if place >= len(self.samples):
            self._next = sample
            return True
        if self.samples[place] != sample:
            raise self._of_another(f"sample {place + 1} is another one")
        return False

    def add(self, by_layer: Sequence[Sums]) -> None:
        """What the sample asked for last adds."""
        old = self.by_layer or [{} for _ in by_layer]
        self.by_layer = [
            {name: had[name] + t.cpu() if had else t.cpu() for name, t in new.items()}
            for had, new in zip(old, by_layer, strict=True)
        ]
        self.samples.append(self._next)
        if self.path is not None:
            self._write(self.path)

    def _write(self, path: Path) -> None:
        tensors = {
            f"{name}.{layer}": t.clone(memory_format=torch.contiguous_format)
            for layer, named in enumerate(self.by_layer)
            for name, t in named.items()
        }
        note = {"heading": json.dumps(self.heading), "samples": json.dumps(self.samples)}
        files.write(path, save(tensors, note))

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                note = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
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

    def close(self) -> None:
        """All is measured: the file is not needed any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _of_another(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path} holds the beginning of another measurement ({how}). Finish that one, or "
            "delete the file."
        )
