"""Page and plot of `long_answers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foveate.pictures.escaping import without_folders
from foveate_lab.report.charts import axes, svg

PARTS = 4  # of the answer, for what changes over time
EACH = 64  # tokens fed at a time; policies compress in between


def page(found: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return the page: settings and table."""
    length, lines = facts["tokens"], facts["lines"] * facts["prompts"]
    head = [f"part {part + 1}" for part in range(PARTS)]
    head = ["policy", "perplexity", *head, "agreement", "recalled: prompt's", "answer's"]
    head += ["MB at most", "at the end"]
    rows = [
        "# Long answers",
        "",
        f"{facts['model']}, float32, {facts['prompts']} prompts of {facts['read']} tokens (pages "
        f"of Python's manual, to be explained, and {facts['lines']} lines about people), answers "
        f"of {length:,} tokens: the full cache's own, drawn at temperature "
        f"{facts['temperature']} after {facts['lines']} more lines. Every policy is told that "
        f"answer, and compresses whenever {EACH} tokens have come, to {facts['held']} pairs a head "
        f"of the {facts['read'] + length:,} and more that the full cache has.",
        "",
        "* Perplexity is of the answer's tokens, in all and by quarters; agreement is the share of "
        "places at which the likeliest token is the full cache's.",
        f"* Recalled: of {lines} lines each, how many are completed when they are begun again "
        "behind the answer, every token of the value the likeliest.",
        "* MB are those of one answer, with all that the policy remembers.",
        "",
        f"torch {facts['torch']}, transformers {facts['transformers']}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    rows += [_table_row(row) for row in found]
    return "\n".join([*rows, "", "![Bytes and perplexity while answering](long_answers.svg)"])


def _table_row(row: dict[str, Any]) -> str:
    cells = [f"`{without_folders(row['policy'])}`", f"{row['perplexity']:.2f}"]
    cells += [f"{x:.2f}" for x in row["perplexity_by_part"]]
    cells += [f"{row['agreement']:.3f}"]
    cells += [str(row[f"recalled_of_{where}"]) for where in ("prompt", "answer")]
    cells += [f"{row[f'bytes_at_{when}'] / 1e6:.1f}" for when in ("most", "end")]
    return f"| {' | '.join(cells)} |"


def plot(found: Sequence[dict[str, Any]]) -> str:
    """Plot bytes against the answer's tokens, and perplexity by its quarters."""
    figure, (left, right) = axes(columns=2)
    for row in found:
        name = without_folders(row["policy"]).split(":")[0]
        tokens = [EACH * index for index in range(len(row["bytes"]))]
        left.plot(tokens, [size / 1e6 for size in row["bytes"]], lw=1.2, label=name)
        parts = range(1, PARTS + 1)
        right.plot(parts, row["perplexity_by_part"], "o-", lw=1.2, ms=3, label=name)
    left.set(xlabel="tokens of the answer", ylabel="MB held", ylim=(0, None))
    right.set(xlabel="quarter of the answer", ylabel="perplexity", xticks=list(parts))
    left.legend(frameon=False, fontsize=7)
    return svg(figure)
