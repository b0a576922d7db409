"""Report page of one or more folders of results, in one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.compression.labels import named
from foveate.data import files
from foveate.errors import InvalidInput
from foveate.pictures.escaping import rendered
from foveate_lab.eval.bundle import Bundle, read_bundles
from foveate_lab.eval.summary import FULL, Estimate, Rows, SummaryCell, cells, failures
from foveate_lab.report.analyses import figures
from foveate_lab.report.charts import against_bytes, brief
from foveate_lab.report.front import on_front
from foveate_lab.report.heat import heat_maps
from foveate_lab.report.merging import ReportPart, names, parts
from foveate_lab.report.splits import LabelSplit, splits


class WrittenPage(NamedTuple):
    """Page that was written, with counts of its contents."""

    path: Path
    answers: int
    tasks: int
    policies: int
    samples: int


def write_page(*folders: Path, out: Path | None = None) -> WrittenPage:
    """Write the page of these folders to ``out``, or to report.html in the first.

    Raises:
        InvalidInput: no results, or files that differ from their manifest.
        CannotWrite: the disk is full, or the folder is not writable.
        MissingPackage: jinja2, matplotlib or scipy is not installed.
    """
    path = out or folders[0] / "report.html"
    files.write(path, page(*folders))
    rows = [
        row for folder in folders for bundle in read_bundles(folder) for row in bundle.stored.rows
    ]
    counts = (len({row[name] for row in rows}) for name in ("task", "spec", "sample"))
    return WrittenPage(path, len(rows), *counts)


def page(*folders: Path) -> str:
    """Render the report of these folders as HTML. Everything from data is escaped.

    Folders of the same model and questions are merged; others become separate parts.

    Raises:
        InvalidInput: no results, or files that differ from their manifest.
        MissingPackage: jinja2, matplotlib or scipy is not installed.
    """
    bundles = [bundle for folder in folders for bundle in read_bundles(folder)]
    for bundle in bundles:
        if not bundle.stored.rows:
            raise InvalidInput(f"{str(bundle.folder)!r} holds no answers yet.")
    all_parts = parts(bundles)
    part_names = names(all_parts) if len(all_parts) > 1 else [""]
    specs = list(dict.fromkeys(row["spec"] for part in all_parts for row in part.rows))
    rendered_parts = [_part(part, name) for part, name in zip(all_parts, part_names, strict=True)]
    return rendered(
        "a report",
        "foveate_lab.report/report.html.j2",
        parts=rendered_parts,
        beside=_beside(all_parts),
        names=part_names,
        shown=dict(zip(specs, brief(specs), strict=True)),
    )


def _part(part: ReportPart, name: str) -> Mapping[str, Any]:
    table = cells(part.rows)
    return {
        "name": name,
        "why": part.why,
        "configuration": part.configuration,
        "sources": [
            _source(bundle, part.configuration.get("versions", {}))
            for bundle in part.bundles
            if _has_details(part, bundle)
        ],
        "tasks": [
            _task(
                task,
                [cell for cell in table if cell.task == task],
                [row for row in part.rows if row["task"] == task],
            )
            for task in dict.fromkeys(cell.task for cell in table)
        ],
        "samples": len({(row["task"], row["sample"]) for row in part.rows}),
        "damaged": sum(len(bundle.stored.damaged) for bundle in part.bundles),
    }


def _has_details(part: ReportPart, bundle: Bundle) -> bool:
    """Check if a folder has details beyond the part's heading."""
    return bundle.manifest is not None or len(part.bundles) > 1


def _source(bundle: Bundle, in_heading: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a folder's name, machine, and versions that the heading does not show already."""
    manifest: Mapping[str, Any] = bundle.manifest or {}
    hardware = manifest.get("hardware", {})
    versions = manifest.get("versions") or bundle.stored.configuration.get("versions", {})
    return {
        "name": bundle.folder.name,
        "sealed": bool(manifest),
        "machine": [hardware.get("processor"), *hardware.get("accelerators", ())],
        "threads": hardware.get("threads"),
        "versions": {
            name: version for name, version in versions.items() if in_heading.get(name) != version
        },
    }


def _beside(all_parts: Sequence[ReportPart]) -> list[Mapping[str, Any]]:
    """Return the scores of every task and policy that several parts share, one per part."""
    columns = [{(cell.task, cell.spec): cell for cell in cells(part.rows)} for part in all_parts]
    rows: list[Mapping[str, Any]] = []
    for task, spec in dict.fromkeys(key for column in columns for key in column):
        shared = [column.get((task, spec)) for column in columns]
        if sum(cell is not None for cell in shared) > 1:
            scores = [(_percent(c.score), c.answered) if c else ("", 0) for c in shared]
            rows.append({"task": task, "spec": spec, "scores": scores})
    return rows


def _task(name: str, task_cells: Sequence[SummaryCell], rows: Rows) -> Mapping[str, Any]:
    scored, best = any(cell.score for cell in task_cells), dict[str, float]()
    for cell in task_cells:
        if cell.score and cell.spec != FULL and not cell.spec.startswith("oracle"):
            budget = named(cell.spec).budget
            best[budget] = max(best.get(budget, 0.0), cell.score.mean)
    task_cells, best_in_both = _best_first(task_cells), on_front(task_cells)
    return {
        "name": name,
        "chart": against_bytes(_drawn(task_cells, scored), "score" if scored else "same tokens"),
        "scored": scored,
        "answered": any(cell.answered for cell in task_cells),
        "forced": any(cell.perplexity is not None for cell in task_cells),
        "rows": [_row(cell, best, cell in best_in_both) for cell in task_cells],
        "blind": blind(task_cells),
        "splits": [_split(label_split) for label_split in splits(rows)] if scored else [],
        "figures": figures(rows),
        "maps": list(heat_maps(rows)),
        "failures": failures(rows),
        "odd": [cell for cell in task_cells if cell.odd],
    }


def _best_first(task_cells: Sequence[SummaryCell]) -> list[SummaryCell]:
    """Sort cells: the full cache first, then methods by their mean over budgets."""
    means: dict[str, list[float]] = {}
    for cell in task_cells:
        estimate = cell.score or cell.agreement
        mean = estimate.mean if estimate.count else 0.0
        means.setdefault(named(cell.spec).method, []).append(mean)

    def order(cell: SummaryCell) -> tuple[bool, float]:
        of_method = means[named(cell.spec).method]
        return cell.spec != FULL, -sum(of_method) / len(of_method)

    return sorted(task_cells, key=order)


def _drawn(task_cells: Sequence[SummaryCell], scored: bool) -> list[SummaryCell]:
    """Return the cells that a chart can draw."""
    having = [cell for cell in task_cells if (cell.score if scored else cell.agreement.count)]
    return [cell for cell in having if not math.isnan(cell.bytes_share)]


def _row(cell: SummaryCell, best: Mapping[str, float], is_on_front: bool) -> Mapping[str, Any]:
    mean = cell.score.mean if cell.score else None
    is_best = cell.spec != FULL and mean is not None and mean == best.get(named(cell.spec).budget)
    return {
        "spec": cell.spec,
        "count": f"{cell.score.count if cell.score else cell.answered} of "
        f"{cell.answered + cell.failed}",
        "bytes": _format(cell.bytes_share, "{:.1f} %", 100.0),
        "score": _percent(cell.score),
        "on_front": is_on_front,
        "best": is_best and not cell.spec.startswith("oracle"),
        "difference": "" if cell.spec == FULL else _percent(cell.difference, sign="+"),
        "agreement": _format(cell.agreement.mean, "{:.0f} %", 100.0),
        "rouge": _format(cell.rouge, "{:.0f} %", 100.0),
        "perplexity": _format(cell.perplexity, "{:.2f}"),
        "kl": _format(cell.kl, "{:.3f}"),
        "compress": _format(cell.compress_s, "{:.0f} ms", 1e3),
        "decode": _format(cell.decode_s_per_token, "{:.0f} ms", 1e3),
    }


def _split(label_split: LabelSplit) -> Mapping[str, Any]:
    """Return a table with the number of samples of each value and each policy's mean scores."""
    heads = [
        f"{value} ({n})" for value, n in zip(label_split.values, label_split.counts, strict=True)
    ]
    rows = {
        spec: [_format(score, "{:.1f}", 100.0) for score in scores]
        for spec, scores in label_split.scores.items()
    }
    return {"label": label_split.label, "heads": heads, "rows": rows}


def _format(value: float | None, template: str, times: float = 1.0) -> str:
    return "" if value is None or math.isnan(value) else template.format(times * value)


def _percent(value: Estimate | None, sign: str = "") -> str:
    if value is None:
        return ""
    mean, low, high = (100 * x for x in (value.mean, value.low, value.high))
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def blind(task_cells: Sequence[SummaryCell]) -> list[str]:
    """Return the budgets at which the oracle is no better than chance.

    Only budgets with both are compared. Methods cannot be distinguished there.
    """
    by_budget: dict[str, dict[str, SummaryCell]] = {}
    for cell in task_cells:
        kind = cell.spec.split(":")[0]
        if kind in ("oracle", "random"):
            by_budget.setdefault(named(cell.spec).budget, {})[kind] = cell
    differing = []
    for budget, both in by_budget.items():
        if len(both) == 2:
            best, chance = (both[k].score or both[k].agreement for k in ("oracle", "random"))
            if best.low <= chance.high:
                differing.append(budget)
    return differing
