"""The samples that a plan asks, and digests that tell whether two folders ask the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from foveate.core import files
from foveate.data import read_record

DRAWN = "drawn.json"


class Drawn(NamedTuple):
    """The names of the samples of an ask, in the order in which they are drawn, what kept data from
    being read, or "", and a digest of all samples: the same only where the same is asked.
    """

    names: tuple[str, ...]
    why: str
    digest: str


def digests(known: Mapping[tuple[str, int], Drawn]) -> dict[str, str]:
    """By benchmark and number of samples; of what was read to its end."""
    return {
        f"{task}, {samples}": one.digest
        for (task, samples), one in known.items()
        if one.names and not one.why
    }


def drawn(out: Path) -> dict[str, str]:
    """The digests of the data that a folder's rows were asked of; none while no run has come to its
    end.

    Raises:
        InvalidInput: the file holds no such table.
    """
    path = out / DRAWN
    return dict(read_record(path).held) if path.exists() else {}


def note_drawn(out: Path, known_digests: Mapping[str, str]) -> None:
    """Adds digests to those of a folder.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    files.write(out / DRAWN, json.dumps({**drawn(out), **known_digests}, indent=1) + "\n")
