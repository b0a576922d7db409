"""Where frames go that leave a stream's memory: what a user says of it, and their storage, which is
main memory, or files in a folder of one stream.
"""

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

from foveate.data import files
from foveate.errors import InvalidBudget, InvalidInput, InvalidParameter
from foveate.policies.amount import Amount
from foveate.policies.parameters import Positive, check, short_repr
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value
from foveate.stream.places import Positions


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Where frames go that leave a stream's memory, and how many come back for a question.

    Args:
        most: bytes that they may take there, "4GB"; then the oldest frames leave for good.
        fetch: frames that each layer fetches for a question, beside those that it holds whole.
        folder: a folder for files, of one stream alone; left out, frames stay in main memory. Files
            in it that a stream left which was not closed are deleted.

    Raises:
        InvalidBudget: no number of bytes.
        InvalidParameter: fewer than one frame, or a folder that is no path.
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
        """The most."""
        return int(Amount.of(self.most).value)

    @property
    def as_json(self) -> dict[str, Any]:
        """In what JSON knows."""
        folder = None if self.folder is None else str(Path(self.folder).absolute())
        return {"most": str(self.most), "fetch": self.fetch, "folder": folder}

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Offload:
        """From what :attr:`as_json` gave."""
        folder = None if entries["folder"] is None else Path(entries["folder"])
        return cls(most=entries["most"], fetch=entries["fetch"], folder=folder)

    def check(self, policy: Policy, positions: Positions) -> None:
        """Raises InvalidParameter where a stream's policy or positions do not go with it."""
        if positions != "true":
            raise InvalidParameter(
                "frames that were offloaded come back at their true positions, and "
                f'positions={positions!r} moves what is held. Use positions="true" with offload.'
            )
        if policy.prune is not None:
            raise InvalidParameter(
                f"prune={print_value(policy.prune)} has tokens of a frame that layers never "
                "compute, and frames that were offloaded come back whole. Leave the prune stage "
                "out of the policy, or offload=."
            )
        if policy.when.decodes:
            raise InvalidParameter(
                f"{policy.when!r} compresses while it answers, and what was fetched would leave "
                "again. Use when=over_budget(reading=true,answering=false) with offload."
            )


Pairs = Mapping[str, Tensor]
"""Pairs of one frame, on the CPU, by name."""

LOCK = "stream.lock"
"""A file that the stream keeps locked as long as it uses the folder."""

_FRAMES = ("frame-????????.safetensors", ".frame-????????-new-*.safetensors")
"""Files of frames, and those that a process was writing when it was killed."""


class InMemory:
    """Frames in main memory."""

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
    """Frames in one file each. The folder is created if it is missing."""

    def __init__(self, folder: Path):
        self._folder = folder
        # the system releases the lock of a process that ends, however it ends
        self._lock = FileLock(folder / LOCK, timeout=0.1, thread_local=False)
        self._checksums: dict[int, int] = {}

    def claim(self) -> None:
        """Make the folder this stream's own, and delete files that an ended stream left.

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
        """Write a frame: all of it, or nothing.

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
            InvalidInput: its file is missing or holds something else than was written.
        """
        path = self._file(number)
        try:
            content = path.read_bytes()
            if zlib.crc32(content) != self._checksums[number]:
                _refuse(path, "was changed since")
            return load(content)
        except (OSError, SafetensorError) as error:
            _refuse(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", error)

    def drop(self, number: int) -> None:
        """Delete a frame's file; raises CannotWrite if the folder does not allow it."""
        with files.reporting(self._folder):
            self._file(number).unlink(missing_ok=True)
        self._checksums.pop(number, None)

    def release(self) -> None:
        """Let other streams use the folder."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not delete open files: the lock file stays
                (self._folder / LOCK).unlink(missing_ok=True)
            self._lock.release()

    def __reduce__(self) -> Any:
        raise InvalidInput(
            f"a stream that offloads into {str(self._folder)!r} cannot be copied or pickled: the "
            "folder belongs to one stream. Use save(path), and load(path, ..., folder=another)."
        )

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidInput(
                f"another stream offloads its frames into {str(self._folder)!r}, and a folder "
                "belongs to one stream. Close that stream, or give another folder."
            ) from None

    def _file(self, number: int) -> Path:
        return self._folder / f"frame-{number:08d}.safetensors"


def _refuse(path: Path, what: str, error: Exception | None = None) -> NoReturn:
    raise InvalidInput(
        f"the offloaded frame {str(path)!r} {what}, so the stream cannot answer from it or be "
        "saved. Load the stream from its latest save(), or close() it and begin anew."
    ) from error
