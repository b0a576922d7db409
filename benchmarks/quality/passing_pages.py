"""Questions about a page that passed before others: right answers of video methods, by distance.

    python -m benchmarks.quality.passing_pages [--limit 300] [--only-write]

Answers `passing_pages` with the demo model, the question after the compression, continuing an
earlier run. Then writes benchmarks/results/passing_pages.md and .json: exactly right answers as
shares of the full cache's, with 95 % intervals (paired bootstrap over questions), by the number of
pages that followed. At the budgets, `recent_frames` keeps less than one of the eight pages, about
one, and one to two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.output import demo, write
from benchmarks.quality.recipe import Run, Share, answer_missing, answered, cell_text, shares
from foveate.compression.labels import named
from foveate.pictures.escaping import without_folders
from foveate_demo import PROFILES
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL

RUNS = Path(__file__).parents[1] / "runs" / "passing_pages"
TASK = "passing_pages"
PROTOCOL: Protocol = "query-agnostic"
METHODS = (
    f"recommended:profile={PROFILES / 'recommended.safetensors'}",
    "infinipotv",
    "hermes:proxy=questions",
    "streammem",
    "recent_frames",
)
BUDGETS = ("20%", "10%", "5%")


def by_distance(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their distance as task, and specs without folders."""
    return [
        {**row, "task": str(row["labels"]["distance"]), "spec": without_folders(row["spec"])}
        for row in rows
    ]


def right_of_full(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return how many questions the full cache answers right, and of how many, by distance."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        if row["spec"] == FULL:
            right, of = found.get(row["task"], (0, 0))
            found[row["task"]] = right + int(row["score"]), of + 1
    return found


def measured(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all figures: each spec's share at each distance, and over all of them."""
    full = right_of_full(rows)
    answerable = [distance for distance, (right, _) in full.items() if right]
    found: dict[str, dict[str, Share]] = {}
    for distance in answerable:
        of_one = [row for row in rows if row["task"] == distance]
        for spec, share in shares(of_one, [distance]).items():
            found.setdefault(spec, {})[distance] = share
    for spec, share in shares(rows, answerable).items() if answerable else ():
        found[spec]["all"] = share
    cells = {spec: {d: x._asdict() for d, x in of.items()} for spec, of in found.items()}
    return {"full": full, "distances": list(full), "shares": cells}


def page(found: Mapping[str, Any]) -> str:
    """Return the page, with one table per budget."""
    columns = [*found["distances"], "all"]
    right = " ".join(f"{d}: {n} of {of}." for d, (n, of) in found["full"].items())
    lines = [
        "# Pages that pass by",
        "",
        "Eight drawn pages pass by, a frame each, and then one of them is asked for, after the "
        f"compression. The {demo()}'s right answers, letter by letter, as shares of the full "
        "cache's, with 95 % intervals (bootstrap over questions, paired), by how many pages passed "
        "after the one asked for.",
        "",
        f"The full cache is right, at each distance: {right}",
        "",
    ]
    for budget in BUDGETS:
        lines += [f"## {budget}", "", f"| method | {' | '.join(columns)} |"]
        lines.append(f"|---|{'---|' * len(columns)}")
        for spec, of in found["shares"].items():
            method, kept = named(spec)
            cells = [cell_text(Share(**of[d])) if d in of else "" for d in columns]
            lines += [f"| `{method}` | {' | '.join(cells)} |"] * (kept == budget)
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--limit", type=int, default=300, help="questions, 50 a distance")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the answers")
    parser.add_argument("--only-write", action="store_true", help="write the results so far")
    a = parser.parse_args()
    if not a.only_write:
        answer_missing(Run("pages", TASK, METHODS, a.limit, ",".join(BUDGETS)), PROTOCOL, a.runs)
    found = measured(by_distance(answered(a.runs)))
    write("passing_pages", page(found), found)


if __name__ == "__main__":
    main()
