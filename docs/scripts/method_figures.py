"""Figure of what a method keeps of the docs' example, and its leaderboard rows, for its page."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

import leaderboard
from cells import bars, label, shade, svg
from kept import QUESTION, Example, Kept, apply_policies, example

import foveate
from foveate.pictures.escaping import without_folders

ROOT = Path(__file__).parents[2]
BUDGET = "20%"
PICTURE = "example.jpg"
WIDE, HIGH = 384.0, 288.0


class Result(NamedTuple):
    """Pairs that a method keeps of the example, and its spec."""

    spec: str
    kept: Kept


def specs() -> dict[str, str]:
    """Return each method's spec on the leaderboard, where windows fit short prompts.

    A method whose profile is not stored in the repository is left out.
    """
    found = {name: name for name in leaderboard.NOT_ASKED}
    for row in leaderboard.boards()["query-aware"]["methods"]:
        name = leaderboard.short(row["method"]).rstrip("*")
        if name in foveate.METHODS and _profiles_exist(row["method"]):
            found.setdefault(name, _at_budget(row["method"]))
    return found


def _at_budget(method: str) -> str:
    """Return a row's spec at the budget of the pictures."""
    if "best_heads(" in method:  # a spec of single stages has its budget in this stage
        return method.replace("best_heads(", f"best_heads(amount={BUDGET},")
    return foveate.policy(method, budget=BUDGET).spec


def _profiles_exist(spec: str) -> bool:
    """Return whether a row's profiles are stored in the repository."""
    names = [part.split(")")[0].split(",")[0] for part in spec.split("profile=")[1:]]
    return all((ROOT / name).is_file() for name in names)


def results() -> dict[str, Result]:
    """Return what each method keeps; needs the repository's root as the current folder."""
    by_name = specs()
    found = apply_policies(list(by_name.values()))
    return {name: Result(spec, found[spec]) for name, spec in by_name.items()}


def figure(result: Result) -> str:
    """Return the example as the method leaves it: the image, the text after it, and the heads."""
    here = example()
    share = float(result.kept.heads.mean())
    summary = (
        f"`{without_folders(result.spec)}` holds {100 * share:.1f} % of the {here.tokens} tokens, "
        "all heads and layers together."
    )
    caption = (
        "Brightness: the share of KV heads, over all layers, that hold a token. Bars: a KV head "
        "each, layer after layer, as high as the share of the prompt that it holds; the line is "
        "the mean."
    )
    return "\n\n".join(
        [
            f"The demo model reads this image and “{QUESTION}”. {summary}",
            '<figure class="kept">\n'
            f"{_picture(result.kept, here, share)}\n{_words(result.kept, here)}\n"
            f"<figcaption>{caption}</figcaption>\n</figure>",
        ]
    )


def _picture(found: Kept, here: Example, mean: float) -> str:
    image = f'<image href="{PICTURE}" width="{WIDE:g}" height="{HIGH:g}"/>'
    below = (0.0, HIGH + 12, WIDE, 70.0)
    return svg(
        "The example's image, dark where it is forgotten",
        WIDE,
        HIGH + 102,
        [
            image,
            *shade(here.grid, found.tokens, (0, 0, WIDE, HIGH)),
            *bars(found.heads, below, mean),
            label(0, HIGH + 97, "first layer"),
            label(WIDE, HIGH + 97, "last layer", anchor="end"),
        ],
    )


def _words(found: Kept, here: Example) -> str:
    spans = [
        f'<span style="--held:{float(found.tokens[at]):.2f}">{_visible(text)}</span>'
        for text, at in here.words
    ]
    return f'<p class="kept-words">{"".join(spans)}</p>'


def _visible(text: str) -> str:
    return "⏎" if text == "\n" else escape(text)


def rows(name: str) -> str:
    """Return the method's rows of the leaderboard, under both protocols."""
    found = [
        _row(protocol, board, row)
        for protocol, board in leaderboard.boards().items()
        for row in leaderboard.ranked(board)
        if leaderboard.short(row["method"]).rstrip("*") == name
    ]
    if not found:
        return ""
    budgets = list(leaderboard.boards()["query-aware"]["tasks"])
    head = f"| protocol | spec | {' | '.join(budgets)} | cost |"
    return "\n".join([head, "|---|---|" + "---|" * len(budgets) + "---|", *found])


def _row(protocol: str, board: leaderboard.Board, row: leaderboard.Board) -> str:
    cells = [leaderboard.cell(row, budget, bold=False) for budget in board["tasks"]]
    cost = leaderboard.percent(row["cost"])
    return f"| {protocol} | {leaderboard.name(row['method'])} | {' | '.join(cells)} | {cost} |"
