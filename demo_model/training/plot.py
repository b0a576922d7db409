"""Plot of the training curves, written to training/results/curves.png.

python -m training.plot --eye RUN/log.jsonl NAMES/log.jsonl --lora RUN/log.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"


def curve(*paths: Path) -> list[dict[str, Any]]:
    """Join the lines of consecutive runs' logs; a step that was repeated after a break counts once,
    with its last line.
    """
    found: list[dict[str, Any]] = []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        start = found[-1]["step"] if found else 0
        each = {line["step"]: {**line, "step": start + line["step"]} for line in lines}
        found += each.values()
    return found


def main() -> None:
    """Draw one panel for the vision tower, and one for the update of the language model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path, nargs="+", required=True)
    parser.add_argument("--lora", type=Path, required=True)
    a = parser.parse_args()
    panels = (
        ("Eye, then names", curve(*a.eye), "reading", {"token": "tokens read", "row": "rows read"}),
        ("Language model", curve(a.lora), "loss", {"right": "answers right"}),
    )
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for axis, (title, lines, loss, shares) in zip(axes, panels, strict=True):
        steps = [line["step"] for line in lines]
        axis.plot(steps, [line[loss] for line in lines], color="#b04a3a", label="loss")
        axis.set(title=title, xlabel="step", ylabel="cross-entropy", ylim=(0, None))
        right = axis.twinx()
        for (name, label), style in zip(shares.items(), ("-", "--"), strict=False):
            right.plot(steps, [line[name] for line in lines], style, color="#2f5d8a", label=label)
        right.set(ylim=(0, 1), ylabel="share")
        handles = axis.get_lines() + right.get_lines()
        axis.legend(handles=handles, loc="center right", frameon=False)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
