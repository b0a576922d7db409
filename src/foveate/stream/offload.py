"""Where frames go that leave a stream's memory: what a user says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.errors import InvalidBudget, InvalidParameter
from foveate.policies.amount import Amount
from foveate.policies.parameters import Positive, check, shown
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
            raise InvalidBudget(f"most={shown(self.most)} is no number of bytes: give '4GB'.")
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
