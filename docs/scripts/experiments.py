"""The tables of docs/reproduce.md."""

from __future__ import annotations

from foveate_lab.reproduce import EXPERIMENTS, FACTS
from foveate_lab.reproduce.registry import folders


def experiments() -> str:
    """One row an experiment, with how far it can be had again."""
    rows = ["| id | shows | models | folders | budgets | state |", "|---|---|---|---|---|---|"]
    for one in EXPERIMENTS.values():
        read = ", ".join(f"`{name}`" for name in folders(one))
        state = f"cannot: {one.cannot}" if one.cannot else one.state
        rows.append(
            f"| `{one.id}` | {one.where}: {one.shows} | {', '.join(one.models)} | {read} | "
            f"{one.budgets} | {state} |"
        )
    return "\n".join(rows)


def facts() -> str:
    """One row a table of facts."""
    rows = [f"| `{one.id}` | {one.where}: {one.shows} |" for one in FACTS.values()]
    return "\n".join(["| id | what it says |", "|---|---|", *rows])
