"""Tables and plot of ``stack.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.output import demo
from benchmarks.quality.stack_splits import NAMES, RESIDUAL, SHARES, Sizes, specs_at
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.results import read
from foveate_lab.report.charts import axes, style, svg

Answered = dict[str, dict[str, list[Mapping[str, Any]]]]
"""Rows by split and share, such as "10%"."""


def answered(runs: Path, protocol: Protocol, tasks: Sequence[str]) -> Answered:
    """Return the rows of questions that every split answered; "full" has one list."""
    answers: Answered = {name: {f"{share:.0%}": [] for share in SHARES} for name in NAMES}
    answers[FULL] = {"100%": []}
    for task in tasks:
        by_sample: dict[str, dict[str, Mapping[str, Any]]] = {}
        for row in read(runs / protocol / task).rows:
            by_sample.setdefault(row["sample"], {})[row["spec"]] = row
        for mine in by_sample.values():
            full = mine[FULL]
            sizes = Sizes(full["tokens"], full["visual"])
            specs = {share: specs_at(share, sizes) for share in SHARES}
            if not all(spec in mine for named in specs.values() for spec in named.values()):
                continue  # an interrupted run ends here
            answers[FULL]["100%"].append(full)
            for share, named in specs.items():
                for name, spec in named.items():
                    answers[name][f"{share:.0%}"].append(mine[spec])
    return answers


def measured(runs: Path, protocol: Protocol, tasks: Sequence[str]) -> dict[str, Any]:
    """Return figures by name of split and share; the full cache has only "100%"."""
    return {
        NAMES.get(name, name): {share: standing(rows) for share, rows in by_share.items()}
        for name, by_share in answered(runs, protocol, tasks).items()
    }


def standing(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return number of questions, right answers and bytes of one split at one share."""
    rows = [row for row in answers if "right" in row]
    if not rows:
        return {}
    return {
        "questions": len(rows),
        "right": mean(row["right"] for row in rows),
        "bytes": mean(row["kv_bytes"] / row["kv_bytes_full"] for row in rows),
    }


def page(measurements: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """Return the page."""
    lines = [
        "# One budget: tokens, pairs, bits",
        "",
        f"The {demo()}, float32 (numbers of 32 bits), `recommended` with its profile; tasks: "
        f"{', '.join(tasks)}. Right answers, letter by letter, and in parentheses the bytes held, "
        "of the full cache's. A split that cannot be so small (a prompt whose text alone is more, "
        "few bits that are too many) has fewer questions, as said, or none. `kivi` holds the last "
        f"{RESIDUAL} pairs of a head as they came.",
        "",
        "![Right answers by split and share of the bytes](stack.svg)",
        "",
    ]
    for protocol, table in measurements.items():
        full = table[FULL]["100%"]
        lines += [f"## {protocol}", ""]
        lines += [f"{full['questions']} questions; the full cache: {full['right']:.0%} right.", ""]
        lines += [f"| | {' | '.join(f'{share:.0%}' for share in SHARES)} |"]
        lines += [f"|---|{'---|' * len(SHARES)}"]
        for split in NAMES.values():
            cells = (_cell(table[split][f"{s:.0%}"], full["questions"]) for s in SHARES)
            lines.append(f"| {split} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(cell: Mapping[str, float], all_asked: float) -> str:
    if not cell:
        return "-"
    some = "" if cell["questions"] == all_asked else f" of {cell['questions']}"
    return f"{cell['right']:.0%}{some} ({cell['bytes']:.1%})"


def plot(measurements: Mapping[str, Any]) -> str:
    """Plot right answers against bytes: a panel per protocol, a line per split."""
    figure, panels = axes(columns=len(measurements), height=3.4)
    for axis, (protocol, table) in zip(np.ravel(panels), measurements.items(), strict=True):
        for index, split in enumerate(NAMES.values()):
            cells = [cell for cell in table[split].values() if cell]
            x, y = [100 * c["bytes"] for c in cells], [100 * c["right"] for c in cells]
            axis.plot(x, y, **style(index), markersize=4, linewidth=1.2, label=split)
        axis.axhline(
            100 * table[FULL]["100%"]["right"], color="#808080", linestyle="--", linewidth=1
        )
        axis.set(title=protocol, xscale="log", xlabel="KV bytes held, %", ylim=(0, 103))
        axis.set_xticks([5, 10, 20], ["5", "10", "20"], minor=False)
        axis.tick_params(which="minor", bottom=False, labelbottom=False)
    first = np.ravel(panels)[0]
    first.set(ylabel="right answers, %")
    figure.legend(
        *first.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7
    )
    return svg(figure)
