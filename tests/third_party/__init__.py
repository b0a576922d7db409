"""A package of someone else, and how it comes to be there: as a file and an entry point."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

POINTS = """[foveate.methods]
value_spread_kv = foveate_half:value_spread_kv
half_kv = foveate_half:half_kv
"""


def install(folder: Path) -> dict[str, str]:
    """Lays the package into a folder as pip would, and gives the environment of processes that have
    it, and this checkout.
    """
    shutil.copy(Path(__file__).with_name("foveate_half.py"), folder)
    info = folder / "foveate_half-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foveate-half\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    paths = [str(folder), *sys.path, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
