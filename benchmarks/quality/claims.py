"""Claims of the papers, each as two policies that differ in one choice: a part of `quality.py`.

Its page is benchmarks/results/quality.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.output import demo
from benchmarks.quality.recipe import Run, answer_missing, answered
from foveate.compression.labels import Named, named
from foveate.loading.hardware import versions_of_results
from foveate_lab.defaults import Protocol
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.summary import FULL, Estimate, SummaryCell, cells, mean_difference
from foveate_lab.report.page import blind

TASKS = "three_documents,chart"
PROFILES = "benchmarks/profiles"  # of the demo model, by `foveate calibrate`
BUDGETS = "50%,33%,20%,10%,5%"
SEED = 0  # the leaderboard's
NOT_ASKED = {("query-agnostic", "chart"): ("5%",)}
WHY = "No 5%: of the shortest, 99 tokens before the question, that is less than some always keep."


class Claim(NamedTuple):
    """Claim of a paper, as two policies of which the first should be better."""

    statement: str
    first: str
    second: str


CLAIMS = (  # prompts are short: windows are a quarter of the budget
    Claim("MixKV improves SnapKV", "mixkv:window=0.25", "snapkv:window=0.25"),
    Claim("MixKV improves AdaKV", "mixkv(window=0.25)+adakv(by=score)", "adakv:window=0.25"),
    Claim(
        "SparseMM's heads beat SnapKV's equal ones",
        f"sparsemm:profile={PROFILES}/sparsemm.json,window=0.25",
        "snapkv:window=0.25",
    ),
    Claim(
        "HeadKV's heads beat SnapKV's equal ones",
        f"headkv:profile={PROFILES}/headkv.json,window=0.25",
        "snapkv:window=0.25",
    ),
    Claim(
        "PrefixKV's layers beat uniform ones",
        "prefixkv:when=after_prefill",
        "prefixkv+h2o.budget:when=after_prefill",
    ),
    Claim("CSP beats H2O", "csp", "h2o"),
    Claim("Decoupling helps (DAVID against none)", "david", "david:rule=never"),
    Claim("Decoupling helps only early (against all layers)", "david", "david:rule=always"),
    Claim("Merging helps (LOOK-M against none)", "lookm", "lookm:merging=none"),
    Claim("Text first helps (LOOK-M without merging against H2O)", "lookm:merging=none", "h2o"),
)
METHODS = (
    "oracle",
    "random:recent=0.25",
    "keydiff:recent=0.25",
    *dict.fromkeys(spec for claim in CLAIMS for spec in (claim.first, claim.second)),
)
Rows = Sequence[Mapping[str, Any]]


def scored(cell: SummaryCell) -> Estimate:
    """Return a cell's score, which every question here has."""
    if cell.score is None:
        raise SystemExit(f"{cell.spec} has no score in {cell.task}: ask again, or another task.")
    return cell.score


def grid(found: Iterable[SummaryCell], budgets: Sequence[str]) -> list[str]:
    """Return one task's table: a row per method, a column per budget, the best in bold."""
    table: dict[str, dict[str, SummaryCell]] = {}
    for cell in found:
        method, budget = named(cell.spec)
        table.setdefault(method, {})[budget] = cell
    full = table.pop(FULL)[""]
    budgets = [budget for budget in budgets if any(budget in row for row in table.values())]
    best = {
        b: max(scored(row[b]).mean for name, row in table.items() if name != "oracle" and b in row)
        for b in budgets
    }
    lines = [
        f"| full cache: {_share(scored(full))} | {' | '.join(budgets)} |",
        f"|---|{'---|' * len(budgets)}",
    ]
    for name, row in table.items():
        texts = []
        for budget in budgets:
            text = _share(scored(row[budget])) if budget in row else ""
            is_best = name != "oracle" and text and scored(row[budget]).mean == best[budget]
            texts.append(f"**{text}**" if is_best else text)
        lines.append(f"| `{name}` | {' | '.join(texts)} |")
    return lines


def verdicts(rows: Rows, budgets: Sequence[str]) -> list[str]:
    """Return a row per claim: how much better the first policy is, in points of the score."""
    scores: dict[Named, dict[tuple[str, str], float]] = {}
    for row in rows:
        scores.setdefault(named(row["spec"]), {})[row["task"], row["sample"]] = float(row["score"])
    lines = [f"| claim | {' | '.join(budgets)} | here |", f"|---|{'---|' * len(budgets)}---|"]
    for claim in CLAIMS:
        names = [named(contenders([s], ["20%"])[0]).method for s in (claim.first, claim.second)]
        found: dict[str, Estimate] = {}
        for budget in budgets:
            first, second = (scores.get(Named(name, budget), {}) for name in names)
            both = sorted(first.keys() & second.keys())
            if both:
                found[budget] = mean_difference([first[key] - second[key] for key in both])
        texts = [_points(found[budget]) if budget in found else "" for budget in budgets]
        lines.append(f"| {claim.statement} | {' | '.join(texts)} | {_verdict(found)} |")
    return lines


def _verdict(found: Mapping[str, Estimate]) -> str:
    """Describe the budgets at which the interval excludes zero, and on which side."""
    above = [budget for budget, x in found.items() if x.low > 0]
    below = [budget for budget, x in found.items() if x.high < 0]
    verdicts = [
        f"{word} at {', '.join(at)}"
        for word, at in (("holds", above), ("the reverse", below))
        if at
    ]
    return "; ".join(verdicts) or "no difference seen"


def _share(x: Estimate) -> str:
    return f"{x.mean:.2f} ({x.low:.2f} to {x.high:.2f})"


def _points(x: Estimate) -> str:
    text = f"{100 * x.mean:+.0f} ({100 * x.low:+.0f} to {100 * x.high:+.0f})"
    return f"**{text}**" if x.low > 0 or x.high < 0 else text


class ProtocolPart(NamedTuple):
    """Part of the page for one protocol, with its cells and each task's blind budgets."""

    lines: list[str]
    cells: list[SummaryCell]
    blind: dict[str, list[str]]


def page(protocol: str, rows: Rows, budgets: Sequence[str]) -> ProtocolPart:
    """Return all tasks of one protocol, and the claims at budgets that distinguish methods."""
    found = cells(rows)
    lines, unseen = [f"## {protocol.capitalize()}", ""], {}
    for task in dict.fromkeys(cell.task for cell in found):
        mine = [cell for cell in found if cell.task == task]
        unseen[task] = blind(mine)
        lines += [f"### {task} ({scored(mine[0]).count} questions)", ""]
        if unseen[task]:
            where = " and ".join(unseen[task])
            lines += [
                f"At {where} this task cannot tell methods apart: the oracle is no better "
                "than chance. It does not count below there.",
                "",
            ]
        if (protocol, task) in NOT_ASKED:
            lines += [WHY, ""]
        lines += [*grid(mine, budgets), ""]
    distinguishing = [row for row in rows if named(row["spec"]).budget not in unseen[row["task"]]]
    lines += [
        f"### What the papers claim, over {' and '.join(unseen)}",
        "",
        "Points of the score by which the first policy is better, with 95 % intervals; bold "
        "where they exclude zero.",
        "",
        *verdicts(distinguishing, budgets),
        "",
    ]
    return ProtocolPart(lines, found, unseen)


def measured(
    runs: Path, protocol: Protocol, tasks: str, budgets: str, limit: int
) -> dict[str, Any]:
    """Measure one protocol, continuing an earlier run."""
    rows: list[Mapping[str, Any]] = []
    for task in tasks.split(","):
        folder, left_out = runs / protocol / task, NOT_ASKED.get((protocol, task), ())
        task_budgets = ",".join(b for b in budgets.split(",") if b not in left_out)
        answer_missing(Run("claims", task, METHODS, limit, task_budgets), protocol, folder, SEED)
        rows += answered(folder)
    summary = page(protocol, rows, budgets.split(","))
    return {
        "demo": demo(),
        "limit": limit,
        "versions": versions_of_results(),
        "blind": summary.blind,
        "cells": [_plain(cell) for cell in summary.cells],
        "page": summary.lines,
    }


def text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of all protocols."""
    first = next(iter(found.values()))
    head = [
        "# What the papers claim, and what is seen",
        "",
        f"The {first['demo']} (SmolLM2-135M-Instruct with an eye), {first['limit']} drawn "
        "questions of each kind, every prompt read once, greedy answers, right letter by letter; "
        "means and 95 % intervals. Prompts are short, so windows are a quarter of the budget. "
        "`oracle` keeps what shows the answer. All methods, on fewer questions, stand in "
        "[docs/quality.md](../../docs/quality.md).",
        "",
    ]
    return "\n".join([*head, *(line for part in found.values() for line in part["page"])])


def _plain(cell: SummaryCell) -> dict[str, Any]:
    """Return the parts of a cell to store."""
    if cell.difference is None:
        raise SystemExit(f"{cell.spec} was asked without the full cache in {cell.task}.")
    score, difference = ([x.mean, x.low, x.high] for x in (scored(cell), cell.difference))
    return {
        "task": cell.task,
        "spec": cell.spec,
        "score": score,
        "difference": difference,
        "count": scored(cell).count,
        "bytes_share": cell.bytes_share,
    }
