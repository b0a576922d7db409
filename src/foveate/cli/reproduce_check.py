"""``foveate reproduce --check``: what there is of the data of experiments, as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.text import Text

from foveate.cli import console
from foveate.cli.eval import REFUSED
from foveate.reproduce.check import BenchmarkFolder, Checked


def tell(checked: Sequence[Checked], json: bool) -> None:
    """Shows what was found. The exit code is 3 if something is missing."""
    folders = {one.task: one for each in checked for one in each.folders}
    if json:
        console.print_json(
            {
                "data": [one.to_json() for one in folders.values()],
                "experiments": [
                    {
                        "id": one.experiment.id,
                        "tasks": [each.task for each in one.folders],
                        "missing": list(one.missing),
                    }
                    for one in checked
                ],
            }
        )
    else:
        _show(list(folders.values()), checked)
    if any(one.missing for one in folders.values()):
        raise typer.Exit(REFUSED)


def _show(folders: Sequence[BenchmarkFolder], checked: Sequence[Checked]) -> None:
    table = console.table("Data", "Form", "Split", "Count", "First")
    for one in folders:
        for number, part in enumerate(one.parts or ()):
            what = f"{one.task} {part.name}".strip()
            count = "missing" if part.missing else str(part.questions)
            table.add_row(
                *map(Text, (what, part.form, part.split, count, "" if number else one.first))
            )
    console.show(table)
    for one in folders:
        if one.missing:
            console.show(Text(f"{one.task}: {one.missing}\n  {one.address}"))
    listed = console.table("Experiment", "Data")
    for each in checked:
        said = f"missing: {', '.join(each.missing)}" if each.missing else "all there"
        listed.add_row(each.experiment.id, Text(said if each.folders else "reads none"))
    console.show(listed)
