"""What has been measured so far, in a file, so that a long measurement can go on after a break."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from foveate.data import lines
from foveate.errors import InvalidInput


class Ledger:
    """Numbers of one sample after the other, as JSON lines beneath a heading.

    Ask :meth:`lacks` for each sample in turn, and :meth:`add` its numbers if it says so. A line
    that a kill cut short does not count. Without a path nothing is written.

    Raises:
        InvalidInput: the file is of another measurement.
    """

    def __init__(self, path: Path | None, heading: Mapping[str, Any]):
        self.path, self.heading = path, dict(heading)
        self._samples: list[tuple[str, Any]] = []  # fingerprint, numbers
        self._asked = 0
        if path is None:
            return
        try:
            contents = lines.read(path)
        except ValueError as error:
            raise self._of_another(f"it cannot be read: {error}") from error
        if contents and contents[0] != heading:
            raise self._of_another(f"{contents[0]}, not {self.heading}")
        self._samples = [tuple(line) for line in contents[1:]]
        if self._samples:
            self._write(path)

    @property
    def numbers(self) -> list[Any]:
        """Of all samples, in order."""
        return [numbers for _, numbers in self._samples]

    def lacks(self, sample: str) -> bool:
        """Whether the next sample, of that fingerprint, has to be measured.

        Raises:
            InvalidInput: another sample stands in its place.
        """
        place, self._asked = self._asked, self._asked + 1
        if place >= len(self._samples):
            self._next = sample
            return True
        if self._samples[place][0] != sample:
            raise self._of_another(f"sample {place + 1} is another one")
        return False

    def add(self, numbers: Any) -> None:
        """What the sample asked for last has; on disk when this returns."""
        self._samples.append((self._next, numbers))
        if self.path is None:
            return
        if len(self._samples) == 1:
            self._write(self.path)
            return
        lines.append(self.path, self._samples[-1])

    def _write(self, path: Path) -> None:
        lines.write(path, (self.heading, *self._samples))

    def close(self) -> None:
        """All is measured: the file is not needed any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _of_another(self, how: str) -> InvalidInput:
        return InvalidInput(
            f"{self.path} holds the beginning of another measurement ({how}). Finish that one, or "
            "delete the file."
        )


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
