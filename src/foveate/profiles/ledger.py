"""What has been measured so far, in a file, so that a long measurement can go on after a break."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from foveate.data import lines
from foveate.errors import InvalidInput
from foveate.policies.gathering import Sums
from foveate.profiles.tensor_profile import read_tensors, write_tensors


class SampleLedger(ABC):
    """What has been measured of samples, in a file. Ask :meth:`lacks` for each sample in turn, and
    add what was measured if it says so: it is on disk then. Without a path nothing is written.

    Raises:
        InvalidInput: the file is of another measurement.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.path, self.heading = path, dict(heading)
        self.samples: list[str] = []  # fingerprints
        self._asked = 0
        if path is not None and path.exists():
            self._read(path)

    @abstractmethod
    def _read(self, path: Path) -> None:
        """Read what an earlier run measured."""

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

    def close(self) -> None:
        """All is measured: the file is not needed any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _of_another(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path} holds the beginning of another measurement ({how}). Finish that one, or "
            "delete the file."
        )


class Ledger(SampleLedger):
    """Numbers of one sample after the other, as JSON lines beneath a heading. A line that a kill
    cut short does not count.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.numbers: list[Any] = []
        super().__init__(path, heading)

    def _read(self, path: Path) -> None:
        try:
            contents = lines.read(path)
        except ValueError as error:
            raise self._of_another(f"it cannot be read: {error}") from error
        if contents and contents[0] != self.heading:
            raise self._of_another(f"{contents[0]}, not {self.heading}")
        self.samples = [sample for sample, _ in contents[1:]]
        self.numbers = [numbers for _, numbers in contents[1:]]
        if self.samples:
            self._write(path)

    def add(self, numbers: Any) -> None:
        """Add what the sample asked for last has."""
        self.samples.append(self._next)
        self.numbers.append(numbers)
        if self.path is None:
            return
        if len(self.samples) == 1:
            self._write(self.path)
        else:
            lines.append(self.path, (self._next, numbers))

    def _write(self, path: Path) -> None:
        lines.write(path, (self.heading, *zip(self.samples, self.numbers, strict=True)))


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


def fingerprint(*parts: Any) -> str:
    """Of tensors, mappings and plain values."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Mapping):
            digest.update(fingerprint(*(x for pair in sorted(part.items()) for x in pair)).encode())
        elif isinstance(part, Tensor):
            whole = part.detach().cpu().contiguous()
            digest.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
            digest.update(whole.float().numpy().tobytes())
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()[:16]
