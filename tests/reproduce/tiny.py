"""Stand-ins of a tiny random model, in this process and in those that it starts.

``python -m tests.reproduce.tiny DIRECTORY COMMAND...`` kills runs as :mod:`tests.eval.killing`.
"""

from __future__ import annotations

import sys

import pytest

from foveate_lab.reproduce.running import lab
from tests.eval import killing


def stand_in(patch: pytest.MonkeyPatch, directory: str) -> None:
    """Has all stand-ins use the model there."""
    patch.setattr(lab, "stand_ins", lambda names: dict.fromkeys(names, directory))


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, sys.argv.pop(1))
        killing.main()
