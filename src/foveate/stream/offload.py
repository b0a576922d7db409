"""Settings of offloading, and storage of offloaded frames: main memory, or files in a folder."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from foveate.chat.positions import Positions
from foveate.data import files
from foveate.errors import InvalidBudget, InvalidInput, InvalidParameter
from foveate.policies.amount import Amount
from foveate.policies.parameters import Positive, check, short_repr
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Settings for offloading a stream's frames.

    Args:
        most: maximum size of offloaded frames, e.g. "4GB"; beyond it, the oldest are deleted.
        fetch: number of frames that each layer fetches for a question, besides complete ones in
            its memory.
        folder: a folder for files, which one stream alone may use; by default, frames stay in main
            memory. Files of an earlier stream that was not closed are deleted.

    Raises:
        InvalidBudget: ``most`` is no number of bytes.
        InvalidParameter: ``fetch`` is below 1, or ``folder`` is no path.
    """

    most: str | Amount = "4GB"
    fetch: int = 16
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            try:
                object.__setattr__(self, "folder", Path(self.folder))
            except TypeError as error:
                raise InvalidParameter(f"folder={self.folder!r}: give a path.") from error
        amount = Amount.of(self.most)
        if amount.kind != "bytes":
            raise InvalidBudget(f"most={short_repr(self.most)} is no number of bytes: give '4GB'.")
        check({"fetch": Positive}, {"fetch": self.fetch})

    @property
    def bytes(self) -> int:
        """Maximum size of all frames in bytes."""
        return int(Amount.of(self.most).value)

    @property
    def as_json(self) -> dict[str, Any]:
        """Settings as a JSON object."""
        folder = None if self.folder is None else str(Path(self.folder).absolute())
        return {"most": str(self.most), "fetch": self.fetch, "folder": folder}

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Offload:
        """Return the settings from :attr:`as_json`."""
        folder = None if entries["folder"] is None else Path(entries["folder"])
        return cls(most=entries["most"], fetch=entries["fetch"], folder=folder)

    def check(self, policy: Policy, positions: Positions) -> None:
        """Raise InvalidParameter if a stream's policy or positions do not allow offloading."""
        if positions != "true":
            raise InvalidParameter(
                "offloaded frames return at their true positions, and "
                f'positions={positions!r} moves stored pairs. Use positions="true" with offload.'
            )
        if policy.prune is not None:
            raise InvalidParameter(
                f"prune={print_value(policy.prune)} leaves tokens of a frame uncomputed in some "
                "layers, and offloaded frames must be complete. Leave out the policy's prune "
                "stage, or offload=."
            )
        if policy.when.decodes:
            raise InvalidParameter(
                f"{policy.when!r} compresses during answers, which would drop fetched frames. "
                "Use when=over_budget(reading=true,answering=false) with offload."
            )


Pairs = Mapping[str, Tensor]
"""Pairs of one frame, on the CPU, by name."""

LOCK = "stream.lock"
"""File that a stream keeps locked while it uses the folder."""

_FRAMES = ("frame-????????.safetensors", ".frame-????????-new-*.safetensors")
"""Patterns of frames' files, and of temporary ones that a killed process left."""


class InMemory:
    """Storage of frames in main memory."""

    def __init__(self) -> None:
        self._frames: dict[int, Pairs] = {}

    def claim(self) -> None:
        """Do nothing: memory is not shared with other streams."""

    def put(self, number: int, pairs: Pairs) -> None:
        """Store a frame."""
        self._frames[number] = pairs

    def get(self, number: int) -> Pairs:
        """Return a frame."""
        return self._frames[number]

    def drop(self, number: int) -> None:
        """Delete a frame."""
        del self._frames[number]

    def release(self) -> None:
        """Do nothing."""


class InFolder:
    """Storage of frames in files of a folder, which is created if it is missing."""

    def __init__(self, folder: Path):
        self._folder = folder
        # the operating system releases the lock of a process that is killed, too
        self._lock = FileLock(folder / LOCK, timeout=0.1, thread_local=False)
        self._checksums: dict[int, int] = {}

    def claim(self) -> None:
        """Lock the folder for this stream, and delete files that an ended stream left.

        Raises:
            InvalidInput: another stream uses the folder.
            CannotWrite: the folder cannot be written to.
        """
        if self._lock.is_locked:
            return
        with files.reporting(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
            for pattern in _FRAMES:
                for file in self._folder.glob(pattern):
                    file.unlink()

    def put(self, number: int, pairs: Pairs) -> None:
        """Write a frame atomically.

        Raises:
            InvalidInput: another stream uses the folder.
            CannotWrite: the disk is full, or the folder cannot be written to.
        """
        self.claim()
        content = save({name: t.contiguous() for name, t in pairs.items()})
        files.write(self._file(number), content)
        self._checksums[number] = zlib.crc32(content)

    def get(self, number: int) -> Pairs:
        """Read a frame.

        Raises:
            InvalidInput: its file is missing or was changed.
        """
        path = self._file(number)
        try:
            content = path.read_bytes()
            if zlib.crc32(content) != self._checksums[number]:
                _refuse(path, "was changed")
            return load(content)
        except (OSError, SafetensorError) as error:
            _refuse(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", error)

    def drop(self, number: int) -> None:
        """Delete a frame's file; raises CannotWrite if the folder does not allow it."""
        with files.reporting(self._folder):
            self._file(number).unlink(missing_ok=True)
        self._checksums.pop(number, None)

    def release(self) -> None:
        """Release the folder for other streams."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not delete open files: the lock file stays
                (self._folder / LOCK).unlink(missing_ok=True)
            self._lock.release()

    def __reduce__(self) -> Any:
        raise InvalidInput(
            f"a stream that offloads into {str(self._folder)!r} cannot be copied or pickled: the "
            "folder is locked by one stream. Use save(path), and load(path, ..., folder=another)."
        )

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidInput(
                f"another stream uses the offload folder {str(self._folder)!r}: close that stream, "
                "or give another folder."
            ) from None

    def _file(self, number: int) -> Path:
        return self._folder / f"frame-{number:08d}.safetensors"


def _refuse(path: Path, what: str, error: Exception | None = None) -> NoReturn:
    raise InvalidInput(
        f"the offloaded frame {str(path)!r} {what}, so the stream cannot answer from it or be "
        "saved. Load the stream from its latest save(), or close() it and start again."
    ) from error
