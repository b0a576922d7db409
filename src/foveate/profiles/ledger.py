"""Files of partial measurements, so that a long measurement can resume after a break."""

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
from foveate.policies.gathering import Sums, combined
from foveate.profiles.tensor_profile import read_tensors, write_tensors


class SampleLedger(ABC):
    """Measurements of samples so far, in a file.

    Call :meth:`lacks` for each sample in turn, and add its measurement if that returns True: it is
    written to disk at once. Without a path nothing is written.

    Raises:
        InvalidInput: the file is of another measurement.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.path, self.heading = path, dict(heading)
        self.samples: list[str] = []  # fingerprints
        self._next_index = 0
        if path is not None and path.exists():
            self._read(path)

    @abstractmethod
    def _read(self, path: Path) -> None:
        """Read the measurements of an earlier run."""

    def lacks(self, sample: str) -> bool:
        """Return True if the next sample, with that fingerprint, has to be measured.

        Raises:
            InvalidInput: the file has another sample at this index.
        """
        index, self._next_index = self._next_index, self._next_index + 1
        if index >= len(self.samples):
            self._next = sample
            return True
        if self.samples[index] != sample:
            raise self._of_another(f"sample {index + 1} is another one")
        return False

    def close(self) -> None:
        """Delete the file, once everything is measured."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _of_another(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path} holds the beginning of another measurement ({how}). Finish that one, or "
            "delete the file."
        )


class Ledger(SampleLedger):
    """Numbers per sample, as JSON lines after a heading.

    An incomplete last line, after a kill, does not count.
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
        """Add the numbers of the last sample that :meth:`lacks` was called with."""
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
    """Sums over samples, layer by layer, in a safetensors file.

    Rows of later samples are appended if they are ``joined``.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any], joined: bool = False):
        self.by_layer: list[Sums] = []
        self._joined = joined
        super().__init__(path, heading)

    def add(self, by_layer: Sequence[Sums]) -> None:
        """Add the sums of the last sample that :meth:`lacks` was called with."""
        old = self.by_layer or [{} for _ in by_layer]
        on_cpu = ({name: t.cpu() for name, t in new.items()} for new in by_layer)
        self.by_layer = [
            combined(*pair, joined=self._joined) for pair in zip(old, on_cpu, strict=True)
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
            keys = {name: name.rpartition(".") for name in tensors}
            layers = 1 + max(int(number) for _, _, number in keys.values())
            by_layer: list[dict[str, Tensor]] = [{} for _ in range(layers)]
            for name, (kind, _, number) in keys.items():
                by_layer[int(number)][kind] = tensors[name]
            self.by_layer = [*by_layer]
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise self._of_another(f"it cannot be read: {error!r}") from error
        if heading != self.heading:
            raise self._of_another(f"{heading}, not {self.heading}")


def fingerprint(*parts: Any) -> str:
    """Return a digest of tensors, mappings and plain values."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Mapping):
            digest.update(fingerprint(*(x for pair in sorted(part.items()) for x in pair)).encode())
        elif isinstance(part, Tensor):
            contiguous = part.detach().cpu().contiguous()
            digest.update(f"{contiguous.dtype}{tuple(contiguous.shape)}".encode())
            digest.update(contiguous.float().numpy().tobytes())
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()[:16]
