"""Tables of docs/papers: source lines of each numbered equation and algorithm.

A location is a file and a symbol; `equation_lines.py` finds its line when the table is written. In
a file that is not the method's own, comments put the paper's name before the number: `LOOK-M
eq. 10`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from equation_lines import label, located

SRC = Path(__file__).parents[2] / "src"
TITLES = {
    "mixkv": "MixKV",
    "prefixkv": "PrefixKV",
    "csp": "CSP",
    "david": "DAVID",
    "lookm": "LOOK-M",
}


class Equation(NamedTuple):
    """A numbered equation or algorithm of a paper.

    ``number`` is as printed ("3", "Algorithm 1"). ``locations`` are symbols of the method's own
    file, or "FILE:SYMBOL" with FILE below src/foveate or starting with foveate_lab/. Without any,
    ``why`` gives the reason.
    """

    number: str
    statement: str
    locations: tuple[str, ...]
    why: str


def table(name: str) -> str:
    """Return one row per equation, in the paper's order.

    Raises:
        ValueError: a symbol is gone, or does not name the equation.
    """
    rows = ["| in the paper | what it says | in the source |", "|---|---|---|"]
    for number, statement, locations, why in EQUATIONS[name]:
        found = [file_and_symbol(name, location) for location in locations]
        lines = [f"`src/{in_src(f)}:{line(name, number, f, s)}`, `{s}`" for f, s in found]
        rows.append(f"| {label(number)} | {statement} | {'<br>'.join(lines) or why} |")
    return "\n".join(rows)


def file_and_symbol(name: str, location: str) -> tuple[str, str]:
    """Split a location of this method's paper."""
    file, _, symbol = location.rpartition(":")
    return file or f"methods/{name}.py", symbol


def in_src(file: str) -> str:
    """Return the path below src of a file of the library or the laboratory."""
    return file if file.startswith("foveate_lab/") else f"foveate/{file}"


def line(name: str, number: str, file: str, symbol: str) -> int:
    """Return the line of a file at which an equation of this method's paper is named."""
    text = (SRC / in_src(file)).read_text(encoding="utf-8")
    title = "" if file == f"methods/{name}.py" else TITLES[name]
    try:
        return located(text, symbol, number, title)
    except ValueError as error:
        raise ValueError(
            f"src/{in_src(file)}: {error}, or mend docs/scripts/equations.py."
        ) from None


def eq(number: str, statement: str, *locations: str, why: str = "") -> Equation:
    """Return an equation, in the short form of the data below."""
    return Equation(number, statement, locations, why)


STATISTICS = "ops/mix_statistics.py"
SMOOTHING = "foveate_lab/reproduce/probes/smoothing.py:Smoothing"
SOFTMAX_N = "ops/softmax_n.py:softmax_n"
MERGE = "stages/merge.py:MergeNearest"
TOP_K = "stages/select.py:TopK"
WINDOW = "stages/score/window.py"
MODEL = "No code: standard attention, that of the model"
PROOF = "No code: a step of a proof"
FAULTY = f"{PROOF}, which leaves a factor out (see below)"

EQUATIONS: dict[str, tuple[Equation, ...]] = {
    "mixkv": (
        eq("1", "likelihood of an answer, given the cache", why="No code: decoding as such"),
        eq("2", "importance: what the window pays, and a scaled norm", "MixDiversity.__call__"),
        eq(
            "3",
            "the sum of all cosines is the square of the sum of all directions",
            "redundancy",
            f"{STATISTICS}:mix_statistics",
        ),
        eq(
            "4",
            "redundancy: the mean cosine of different keys",
            "redundancy",
            f"{STATISTICS}:redundancy_of",
        ),
        eq("5", "importance and diversity, mixed by redundancy", "mixed"),
        eq("Algorithm 1", "the whole, over SnapKV", "MixDiversity", "mixkv"),
    ),
    "prefixkv": (
        eq("1", "prefixes that hold the same share fill the budget", "_prefixes", "search"),
        eq("Algorithm 1", "the binary search for that share", "search"),
        eq("2", "a word's cross-entropy", "foveate_lab/eval/answering/perplexity.py:mean_nll"),
        eq(
            "3",
            "perplexity, the exponential of its mean",
            "foveate_lab/eval/answering/perplexity.py:perplexity",
        ),
        eq("4", "F1 of ROUGE-L", "foveate_lab/eval/metrics/rouge.py:rouge_l_to"),
    ),
    "csp": (
        eq(
            "1",
            "attention from a key's own modality, and from the other",
            "CrossSelfAttention",
            f"{WINDOW}:by_modality",
        ),
        eq("2", "the best of each, K^s and K^c of them", "distance_beyond_lists", "Lengths"),
        eq("3", 'what both lists name: `combine="and"`', "CrossSelf.__call__"),
        eq("4", "the chosen pairs, and the last R", "CrossSelf.__call__"),
        eq("5", "softmax of the scaled logits", why=MODEL),
        eq(
            "6",
            "over fewer tokens it is sharper",
            why="No code: an illustration, of what eq. 7 mends",
        ),
        eq("Algorithm 1", "pruning once over the budget", "csp", "stages/when.py:OverBudget"),
        eq("7", "softmax-n", SOFTMAX_N, "SoftmaxN"),
        eq("8", "P, the softmax over all tokens", why=MODEL),
        eq("9", "Q, the softmax over the kept tokens", SMOOTHING),
        eq("10", "Q~, softmax-n over the kept tokens", SOFTMAX_N, SMOOTHING),
        eq("11", "how far Q and Q~ are from P", why=FAULTY),
        eq("12", "that Q~ is nearer", why=FAULTY),
        eq("13", "P once more", why="As eq. 8"),
        eq("14", "Q once more", why="As eq. 9"),
        eq("15", "Q~ once more", why="As eq. 10"),
        eq("16", "eq. 11 of Q, step by step", why=PROOF),
        eq("17", "eq. 11 of Q~, step by step", why=FAULTY),
        eq("18", "eq. 12, step by step", why=FAULTY),
    ),
    "david": (
        eq("1", "softmax of the scaled logits", why=MODEL),
        eq("2", "what the last r queries pay (here on average)", f"{WINDOW}:paid_on_average"),
        eq(
            "3",
            "unified: the best of all, pooled by the maximum",
            f"{WINDOW}:WindowAttention.pooled",
            "Decoupled.__call__",
        ),
        eq("4", "the scores of one modality alone", "Decoupled.__call__"),
        eq("5", "decoupled: the best of each modality", "Decoupled.__call__"),
        eq("6", "NCAR, the normalised cross attention rate", "ncar"),
        eq("7", "its fall from layer to layer", "ModalityFusion.__call__", "ModalityFusion._stops"),
        eq("Algorithm 1", "the whole, by layer", "ModalityFusion", "Decoupled", "david"),
    ),
    "lookm": (
        eq("1", "keys and values of the prompt", why="No code: projections of the model"),
        eq("2", "those of the next token, appended", why="No code: what any cache does"),
        eq("3", "attention of the next token", why=MODEL),
        eq(
            "4",
            "what each token is paid by all queries",
            "importance",
            "stages/score/column_sums.py:ColumnSums",
        ),
        eq("5", "the text prior", "with_text_prior", "stages/score/wrappers.py:TextPrior"),
        eq("6", "kept keys: the best N, the last M", "kept", TOP_K),
        eq("7", "kept values: the same", "kept", TOP_K),
        eq("8", "the best N before the last M", "kept", TOP_K),
        eq(
            "9",
            "the kept key that is nearest by cosine",
            "nearest",
            "ops/nearest.py:nearest_by_cosine",
        ),
        eq("10", "averaged merge", "merged", f"{MERGE}._merge"),
        eq("11", "pivotal merge", "merged", f"{MERGE}._merge"),
        eq("12", "weighted merge", "merged", f"{MERGE}.__call__"),
    ),
}
