"""``foveate reproduce --list``: what there is, and all that is known of it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from foveate.cli import console
from foveate.reproduce import EXPERIMENTS, FACTS, find_experiments
from foveate.reproduce.experiment import Experiment
from foveate.reproduce.registry import brought


def tell(names: Sequence[str], json: bool) -> None:
    """What there is; of these names, all about them."""
    experiments = find_experiments(names) if names else list(EXPERIMENTS.values())
    if json:
        held = [] if names else list(FACTS.values())
        console.print_json(
            {
                "experiments": [one.to_json(brought(one)) for one in experiments],
                "facts": [
                    {
                        "id": one.id,
                        "paper": one.of.name,
                        "where": one.where,
                        "shows": one.shows,
                        "columns": list(one.columns),
                        "rows": [list(row) for row in one.rows],
                        "note": one.note,
                    }
                    for one in held
                ],
            }
        )
        return
    if names:
        for one in experiments:
            _tell(one)
        return
    table = console.table("Id", "Shows", "State")
    for one in experiments:
        table.add_row(one.id, Text(one.shows), one.state)
    for fact in FACTS.values():
        table.add_row(fact.id, Text(fact.shows), "facts")
    console.show(table)


def _tell(one: Experiment) -> None:
    """All that is known of an experiment."""
    lines = [
        f"{one.id}: {one.of.name}, {one.where}",
        one.shows,
        f"models: {', '.join(one.models)}",
        f"data: {one.data}",
        f"metric: {one.metric}; budgets: {one.budgets}",
        "to bring:",
        *(f"  {what}" for what in brought(one)),
        f"state: {one.state}",
        *((f"  {one.cannot}",) if one.cannot else ()),
        *(f"  {said}" for said in one.settled),
        *(f"  {open_.what}: {open_.choice}" for open_ in one.unstated),
        *(f"  differs: {what}" for what in one.departs),
        "where the paper, its code and Foveate differ:",
        *(f"  {what}" for what in one.of.differences),
    ]
    console.show(Text("\n".join(lines) + "\n"))


def facts(names: Sequence[str]) -> None:
    """Tables that hold no result."""
    for name in names:
        fact = FACTS[name]
        table = console.table(*fact.columns)
        for row in fact.rows:
            table.add_row(*map(Text, row))
        console.show(Text(f"{fact.of.name}, {fact.where}: {fact.shows}"), table)
        if fact.note:
            console.show(Text(fact.note))
