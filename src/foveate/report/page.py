"""A folder of results as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foveate.core.errors import InvalidInput
from foveate.eval.contenders import named
from foveate.eval.results import read
from foveate.report.analyses import figures
from foveate.report.charts import against_bytes
from foveate.report.summary import FULL, Cell, Estimate, Rows, cells
from foveate.report.template import rendered


def page(folder: Path) -> str:
    """The HTML of a report on the results in a folder. All that comes from data is escaped.

    Raises:
        InvalidInput: no results.
        MissingPackage: jinja2, matplotlib or scipy is not installed.
    """
    configuration, rows = read(folder)
    if not rows:
        raise InvalidInput(f"{str(folder)!r} holds no answers yet.")
    found = cells(rows)
    tasks = [_task(name, [c for c in found if c.task == name],
                   [row for row in rows if row["task"] == name])
             for name in dict.fromkeys(cell.task for cell in found)]  # fmt: skip
    samples = len({(row["task"], row["sample"]) for row in rows})
    return rendered("a report", "report.html.j2", configuration=configuration, tasks=tasks,
                    samples=samples)  # fmt: skip


def _task(name: str, mine: Sequence[Cell], rows: Rows) -> Mapping[str, Any]:
    best: dict[str, float] = {}
    for cell in mine:
        if cell.score and cell.spec != FULL and not cell.spec.startswith("oracle"):
            budget = named(cell.spec).budget
            best[budget] = max(best.get(budget, 0.0), cell.score.mean)
    return {
        "name": name,
        "chart": against_bytes(mine, "score" if mine[0].score else "same tokens"),
        "scored": mine[0].score is not None,
        "told": any(cell.perplexity is not None for cell in mine),
        "rows": [_row(cell, best) for cell in mine],
        "blind": blind(mine),
        "figures": figures(rows),
    }


def _row(cell: Cell, best: Mapping[str, float]) -> Mapping[str, Any]:
    mean = cell.score.mean if cell.score else None
    is_best = cell.spec != FULL and mean is not None and mean == best.get(named(cell.spec).budget)
    decode = cell.decode_s_per_token
    return {
        "spec": cell.spec,
        "bytes": f"{100 * cell.bytes_share:.1f} %",
        "score": _percent(cell.score),
        "best": is_best and not cell.spec.startswith("oracle"),
        "difference": "" if cell.spec == FULL else _percent(cell.difference, sign="+"),
        "agreement": f"{100 * cell.agreement.mean:.0f} %",
        "rouge": "" if cell.rouge is None else f"{100 * cell.rouge:.0f} %",
        "perplexity": "" if cell.perplexity is None else f"{cell.perplexity:.2f}",
        "kl": f"{cell.kl:.3f}",
        "compress": f"{1e3 * cell.compress_s:.0f} ms",
        "decode": "" if decode is None else f"{1e3 * decode:.0f} ms",
    }


def _percent(value: Estimate | None, sign: str = "") -> str:
    if value is None:
        return ""
    mean, low, high = (100 * x for x in (value.mean, value.low, value.high))
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def blind(mine: Sequence[Cell]) -> list[str]:
    """The budgets at which the oracle is no better than chance, of those that both were asked at:
    no method can be told from another there.
    """
    by_budget: dict[str, dict[str, Cell]] = {}
    for cell in mine:
        kind = cell.spec.split(":")[0]
        if kind in ("oracle", "random"):
            by_budget.setdefault(named(cell.spec).budget, {})[kind] = cell
    found = []
    for budget, both in by_budget.items():
        if len(both) == 2:
            best, chance = (both[k].score or both[k].agreement for k in ("oracle", "random"))
            if best.low <= chance.high:
                found.append(budget)
    return found
