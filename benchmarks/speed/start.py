"""Start-up time of `foveate` beside `import torch`, in seconds of CPU time.

    python -m benchmarks.speed.start [--rounds 5]

Every program runs in its own process, ROUNDS times in turn. Writes start.json and start.md in
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = "from foveate.cli import main; main()"
PROGRAMS = {
    "python -c pass": ("pass",),
    "foveate --version": (COMMAND, "--version"),
    "foveate --help": (COMMAND, "--help"),
    "import foveate": ("import foveate",),
    "import torch": ("import torch",),
    "import torch, foveate; foveate.mixkv": ("import torch, foveate; foveate.mixkv",),
    "import foveate; foveate.compress": ("import foveate; foveate.compress",),
}


def seconds(program: tuple[str, ...]) -> float:
    """Return user and system time of one process."""
    before = os.times()
    subprocess.run([sys.executable, "-c", *program], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def table(found: dict[str, float]) -> str:
    """Return the medians as a table."""
    rows = [f"| `{name}` | {taken:.2f} |" for name, taken in found.items()]
    return "\n".join(["| program | CPU time, s |", "|---|---|", *rows])


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds per median")
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            taken[name].append(seconds(program))
    found = {name: round(median(values), 3) for name, values in taken.items()}
    versions = {name: version(name) for name in ("foveate", "torch", "transformers", "typer")}
    about = {"rounds": rounds, "python": platform.python_version(), "versions": versions}
    stored = json.dumps({**about, "cpu_seconds": found}, indent=1)
    (RESULTS / "start.json").write_text(f"{stored}\n", encoding="utf-8")
    numbers = ", ".join(f"{name} {number}" for name, number in versions.items())
    head = "# Starting\n\nSeconds of CPU time (user and system) of a process, the median of"
    intro = f"{head} {rounds}; Python {about['python']}, {numbers}. `benchmarks/speed/start.py`."
    (RESULTS / "start.md").write_text(f"{intro}\n\n{table(found)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
