"""Facts that a GPU run has to settle, each with the threshold that would change something."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from benchmarks.gpu import checks, contexts, kernels, latents
from benchmarks.gpu.rows import Row
from benchmarks.output import table

Verdict = Literal["pass", "fail", "not run"]
Find = Callable[[Sequence[Row]], float | None]
"""Function from a part's rows to the measured figure; None if a row that it needs is missing."""


class Fact(NamedTuple):
    """A statement about a GPU.

    ``part`` measures it, ``find`` takes the figure from the part's rows, and the fact holds where
    the figure is at most ``limit``, or with ``least`` at least that. ``changes`` says what a
    failure changes.
    """

    name: str
    part: str
    find: Find
    limit: float
    changes: str
    least: bool = False

    @property
    def threshold(self) -> str:
        """Threshold in words."""
        return f"{'>=' if self.least else '<='} {self.limit:g}"


class Finding(NamedTuple):
    """Verdict on a fact, with the figure if it was measured."""

    fact: Fact
    figure: float | None
    verdict: Verdict


def _rows_with(rows: Sequence[Row], fields: Mapping[str, Any]) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in fields.items())]


def _figure(name: str, **about: Any) -> Find:
    """Return a function that finds a figure in the row with these fields."""

    def find(rows: Sequence[Row]) -> float | None:
        figure = next((row.get(name) for row in _rows_with(rows, about)), None)
        return None if figure is None else float(figure)

    return find


def _ratio(name: str, above: Mapping[str, Any], below: Mapping[str, Any]) -> Find:
    """Return a function that divides a figure of one row by that of another."""
    first, second = _figure(name, **above), _figure(name, **below)

    def find(rows: Sequence[Row]) -> float | None:
        numerator, denominator = first(rows), second(rows)
        return numerator / denominator if numerator is not None and denominator else None

    return find


def _worst(name: str, **about: Any) -> Find:
    """Return a function that finds the largest figure of the rows with these fields, of which none
    may lack it.
    """

    def find(rows: Sequence[Row]) -> float | None:
        figures: list[Any] = [row.get(name) for row in _rows_with(rows, about)]
        return None if None in figures or not figures else float(max(figures))

    return find


def _wrong(wrong: Callable[[Sequence[Row]], Sequence[Row]]) -> Find:
    """Return a function that counts wrong rows; None if none ran."""

    def find(rows: Sequence[Row]) -> float | None:
        ran = [row for row in rows if "not_run" not in row]
        return float(len(wrong(rows))) if ran else None

    return find


def _slower_claims(rows: Sequence[Row]) -> float | None:
    """Return the smallest share of a paper's claimed speed-up that was measured."""
    graphs = [row for row in rows if row.get("how") == "CUDA graph"]
    shares = [row["measured"] / row["claimed"] for row in graphs if "measured" in row]
    return min(shares) if shares and len(shares) == len(graphs) else None


SNAPKV, ADAKV = "snapkv:budget=20%", "adakv:budget=20%"
EAGER, GRAPH, COMPILED = ({"how": how} for how in ("eager", "CUDA graph", "compiled"))
LONGEST, SHORTEST = contexts.TOKENS[-1], contexts.TOKENS[0]
FACTS = (
    Fact("Wrong kernels", "kernels", _wrong(kernels.wrong), 0, "kernels stay off by default"),
    Fact("Failed tests on the device", "tests", _wrong(checks.wrong), 0, "docs/kernels.md"),
    Fact(
        "Ragged decoding, GB/s to a copy's",
        "ragged",
        _figure("to_copy", what="heads of one length, CUDA graph"),
        0.8,
        "the ragged kernel's tiles",
        least=True,
    ),
    Fact(
        "Step, dense at 20 %, to the full cache (eager)",
        "steps",
        _ratio("ms", {"policy": SNAPKV, **EAGER}, {"policy": "full", **EAGER}),
        1.0,
        "docs/kernels.md: compressed steps are no slower",
    ),
    Fact(
        "Step, dense at 20 %, to the full cache (CUDA graph)",
        "steps",
        _ratio("ms", {"policy": SNAPKV, **GRAPH}, {"policy": "full", **GRAPH}),
        0.9,
        "README: decoding gets faster",
    ),
    Fact(
        "Step, dense at 20 %, to the full cache (compiled)",
        "steps",
        _ratio("ms", {"policy": SNAPKV, **COMPILED}, {"policy": "full", **COMPILED}),
        0.9,
        "docs/kernels.md: compiled steps",
    ),
    Fact(
        "Step, ragged to dense at 20 % (CUDA graph)",
        "steps",
        _ratio("ms", {"policy": ADAKV, **GRAPH}, {"policy": SNAPKV, **GRAPH}),
        1.15,
        "the default of heads=by_prompt in recommended",
    ),
    Fact(
        "Step, KIVI's codes, to the full cache (eager)",
        "steps",
        _ratio("ms", {"policy": "kivi", **EAGER}, {"policy": "full", **EAGER}),
        1.5,
        "kivi's page: what a step costs",
    ),
    Fact(
        "Step, TurboQuant's codes, to the full cache (eager)",
        "steps",
        _ratio("ms", {"policy": "turboquant", **EAGER}, {"policy": "full", **EAGER}),
        1.5,
        "turboquant's page: what a step costs",
    ),
    Fact(
        "Step over latents, absorbed to expanded",
        "steps",
        _ratio("ms", {"policy": latents.ABSORBED}, {"policy": latents.EXPANDED}),
        0.8,
        "where absorbed projections are used",
    ),
    Fact(
        "Latents, difference of absorbed and expanded",
        "steps",
        _figure("difference", policy=latents.ABSORBED),
        latents.ALLOWED,
        "where absorbed projections are used",
    ),
    Fact(
        "Waits of the host in a step",
        "steps",
        _worst("waits", **EAGER),
        0,
        "docs/kernels.md: the host never waits",
    ),
    Fact(
        "Attention with sums at 32k, to FlashAttention",
        "attention",
        _figure("to_flash", tokens=32768, what="attention_with_sums"),
        1.4,
        "the default kernels of column sums",
    ),
    Fact(
        "Prefill with column sums in bfloat16, to stock (h2o, 16k)",
        "half",
        _figure("ratio", tokens=16384, policy="h2o"),
        1.2,
        "docs/which_method.md: methods with sums",
    ),
    Fact(
        "Prefill with a window in bfloat16, to stock (snapkv, 16k)",
        "half",
        _figure("ratio", tokens=16384, policy="snapkv"),
        1.05,
        "README: what compression adds to a prefill",
    ),
    Fact(
        f"First token at {SHORTEST:,}, to stock (snapkv)",
        "contexts",
        _figure("ratio", part="read", tokens=SHORTEST, policy=SNAPKV),
        1.1,
        "docs: the first token comes no later",
    ),
    Fact(
        f"First token at {LONGEST:,}, to stock (snapkv)",
        "contexts",
        _figure("ratio", part="read", tokens=LONGEST, policy=SNAPKV),
        1.05,
        "docs: the first token comes no later",
    ),
    Fact(
        f"Step at {LONGEST:,}, to the full cache (snapkv)",
        "contexts",
        _ratio(
            "ms",
            {"part": "read", "tokens": LONGEST, "policy": SNAPKV},
            {"part": "read", "tokens": LONGEST, "policy": "(stock)"},
        ),
        0.6,
        "README: decoding of long contexts",
    ),
    Fact(
        "Growth of policies' own work over 8 times the tokens",
        "contexts",
        _worst("grows", part="alone"),
        9,
        "docs: work grows with the tokens",
    ),
    Fact(
        "Papers' speed-ups, smallest measured to claimed (CUDA graph)",
        "headlines",
        _slower_claims,
        0.8,
        "benchmarks/results/gpu.md",
        least=True,
    ),
    Fact(
        "Requests a second inside vLLM, to stock",
        "vllm",
        _figure("to_stock"),
        1.0,
        "docs/serving.md; python -m benchmarks.serving.serving_gpu measures it",
        least=True,
    ),
)


def findings(parts: Mapping[str, Any]) -> list[Finding]:
    """Return a verdict on every fact from the parts of a run."""
    return [_finding(fact, parts.get(fact.part, {}).get("rows", ())) for fact in FACTS]


def _finding(fact: Fact, rows: Sequence[Row]) -> Finding:
    figure = fact.find(rows)
    if figure is None:
        return Finding(fact, None, "not run")
    holds = figure >= fact.limit if fact.least else figure <= fact.limit
    return Finding(fact, figure, "pass" if holds else "fail")


def page(parts: Mapping[str, Any]) -> list[str]:
    """Return the list as a Markdown table."""
    cells = [
        [
            finding.fact.name,
            finding.fact.threshold,
            "" if finding.figure is None else f"{finding.figure:.3g}",
            finding.verdict,
            finding.fact.changes,
        ]
        for finding in findings(parts)
    ]
    return table(["fact", "threshold", "measured", "verdict", "what a failure changes"], cells)
