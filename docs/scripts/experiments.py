"""Tables of docs/reproduce.md."""

from __future__ import annotations

from foveate_lab.reproduce import EXPERIMENTS, FACTS
from foveate_lab.reproduce.registry import folders


def experiments() -> str:
    """Return one row per experiment, and whether it can be reproduced."""
    rows = ["| id | shows | models | folders | budgets | state |", "|---|---|---|---|---|---|"]
    for experiment in EXPERIMENTS.values():
        read = ", ".join(f"`{name}`" for name in folders(experiment))
        cannot = experiment.cannot
        state = f"cannot: {cannot}" if cannot else experiment.state
        rows.append(
            f"| `{experiment.id}` | {experiment.where}: {experiment.shows} | "
            f"{', '.join(experiment.models)} | {read} | {experiment.budgets} | {state} |"
        )
    return "\n".join(rows)


def facts() -> str:
    """Return one row per table of facts."""
    rows = [f"| `{fact.id}` | {fact.where}: {fact.shows} |" for fact in FACTS.values()]
    return "\n".join(["| id | what it says |", "|---|---|", *rows])
