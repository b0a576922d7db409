"""Generator of tables from the registry, results and tests; ``--check`` only compares.

python docs/scripts/tables.py [--check]
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import Any

import combinations
import defaults
import differences
import equations
import experiments
import house
import kvpress_names
import leaderboard
import leaderboard_picture
import models
import scans
import served
import tested_by
import way
from provenance import filled, with_origin

import foveate
from foveate.cli.run.rows import Figures, stored
from foveate.compression.labels import named
from foveate.pictures.escaping import without_folders
from foveate.policies.parameters import describe
from foveate.policies.prunes import PRUNES
from foveate.policies.spec import print_value
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.summary import estimate
from foveate_lab.eval.task_registry import TASKS, Task

ROOT = Path(__file__).parents[2]


def methods() -> str:
    """Return one row per method: its name, what it does, and its paper."""
    rows = ["| method | what it does | paper |", "|---|---|---|"]
    for name, method in foveate.METHODS.items():
        paper = method.paper
        where = (
            f"https://arxiv.org/abs/{paper.arxiv}"
            if paper and paper.arxiv
            else paper and paper.code
        )
        source = f"[{paper.title}]({where}), {paper.year}" if paper else ""
        rows.append(f"| `{name}` | {method.summary} | {source} |")
    return "\n".join(rows)


def prunes() -> str:
    """Return one row per way to prune: its spec with defaults, what it computes, and its paper."""
    rows = ["| first in a spec | what is computed | paper |", "|---|---|---|"]
    own = {k: prune for k, prune in PRUNES.items() if prune.cls.__module__.startswith("foveate.")}
    for name, method in own.items():
        arguments = ", ".join(_field(field) for field in dataclasses.fields(method.cls))
        arguments = arguments.replace("|", r"\|")  # a bar between shares separates no cells
        paper = method.paper
        source = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper else ""
        rows.append(f"| `{name}.prune({arguments})` | {method.summary} | {source} |")
    return "\n".join(rows)


def one_budget() -> str:
    """Return right answers under the parts of one budget, alone and together, as in stack.md."""
    results = json.loads((ROOT / "benchmarks" / "results" / "stack.json").read_text())
    shares = list(next(iter(results.values()))["pairs alone"])
    heads = [f"{protocol}, {share}" for protocol in results for share in shares]
    rows = [f"| right answers at | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for name in next(iter(results.values())):
        cells = [results[protocol][name].get(s, {}) for protocol in results for s in shares]
        if name == "full":
            cells = [results[protocol][name]["100%"] for protocol in results for _ in shares]
        rows.append(f"| {name} | {' | '.join(map(_right, cells))} |")
    return "\n".join(rows)


def _right(result: dict[str, float]) -> str:
    return f"{result['right']:.0%}" if result else "-"


def _field(field: dataclasses.Field[Any]) -> str:
    missing = field.default is dataclasses.MISSING
    return f"{field.name}=..." if missing else f"{field.name}={print_value(field.default)}"


def ranges() -> str:
    """Return one row per parameter and what it takes, with the methods that have it."""
    owners: dict[tuple[str, str], list[str]] = {}
    for name, method in foveate.METHODS.items():
        for key in method.parameters:
            takes = describe(method.hints[key]) or "an amount"
            owners.setdefault((key, takes), []).append(f"`{name}`")
    rows = [
        f"| `{key}` | {takes} | {', '.join(of)} |" for (key, takes), of in sorted(owners.items())
    ]
    return "\n".join(["| parameter | takes | of |", "|---|---|---|", *sorted(rows)])


def kept() -> str:
    """Return how often answers stay the same, from the stored results of `foveate run`."""
    evaluation = stored()
    questions = evaluation.questions
    full, best, *others = evaluation.by_spec.values()
    sizes = f"{_mib(best)} instead of {_mib(full)}"
    share = estimate([1.0] * best.same + [0.0] * (questions - best.same))
    low, high = (round(100 * end) for end in (share.low, share.high))
    text = (
        f"The small demo model was asked {questions} questions about three drawn pages each. With "
        f"{_percent(best.kv_bytes / full.kv_bytes, 0)} of the cache ({sizes} on average; the "
        "picture shows a longer prompt) `recommended` gives "
        f"the full cache's answer to **{best.same} of {questions}** ({low} to {high} %, 95 % "
        "confidence); two well-known methods of the same size to "
        f"{' and '.join(str(other.same) for other in others)}:"
    )
    head = f"| | kept | KV memory | same answer, of {questions} | right, of {questions} |"
    lines = [filled(text), "", head, "|---|---|---|---|---|"]
    for spec, figures in evaluation.by_spec.items():
        method, budget = named(spec)
        name, amount = (f"`{method}`", budget) if budget else ("full cache", "100%")
        cells = (name, amount, _mib(figures), str(figures.same), str(figures.right))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def landing() -> str:
    """Return the first row of :func:`kept` in two sentences, with its source."""
    evaluation = stored()
    full, best, *_ = evaluation.by_spec.values()
    questions = f"{evaluation.questions} questions about {evaluation.task.replace('_', ' ')}"
    return filled(
        f"On {questions}, **{best.same} of {evaluation.questions}** answers of the demo model are "
        f"those of the full cache with **{_percent(best.kv_bytes / full.kv_bytes, 0)}** of it: "
        f"{_mib(best)} instead of {_mib(full)}, under `recommended` with its profile "
        "([data](../demo_model/foveate_demo/figures.json), "
        "[script](../benchmarks/quality/first_minute.py)); the [leaderboard](quality.md) has all "
        "methods."
    )


def _mib(figures: Figures) -> str:
    return f"{figures.kv_bytes / 2**20:.1f} MiB"


def speed() -> str:
    """Return the cost and the gain of two policies, as in cpu.md."""
    found = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())
    rows = {row["method"]: row for row in found["prefill"]}
    snapkv, adakv = rows["snapkv"], rows["adakv"]
    longer = " and ".join(_percent(row["prefill_ratio"] - 1, 1) for row in (snapkv, adakv))
    share = snapkv["budget"].replace("%", " %")
    return filled(
        f"Speed: with {share} of {found['tokens']:,} tokens kept, on a CPU, a token of the answer "
        f"takes {snapkv['decode_ratio']:.2f} of the full cache's time with `snapkv` and "
        f"{adakv['decode_ratio']:.2f} with `adakv`, whose heads keep different numbers as those of "
        f"`recommended` do; the prefill takes {longer} longer "
        "([cpu.md](benchmarks/results/cpu.md)). Prompts of a few hundred tokens only save memory. "
        "Nothing has been measured on a GPU yet."
    )


def peers() -> str:
    """Return five lines on what is better than kvpress and what is not, as in peers.md."""
    found = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["overheads"]
    ours, theirs = ({row["method"]: row for row in found[who]} for who in ("ours", "kvpress"))
    full_bytes = ours["full"]["kv_bytes"]
    both = {name: (ours[name], theirs[name]) for name in ("criticalkv+adakv", "kvzip", "keydiff")}
    heads, twice, plain = both.values()
    shares = [_percent(row["kv_bytes"] / full_bytes, 0) for row in heads]
    peak = [f"{row['peak_bytes'] / 1e6:.0f}" for row in twice]
    lines = [
        f"* Heads that keep different numbers free memory: `criticalkv+adakv` at 20 % stores "
        f"{shares[0]} of the full cache's bytes; kvpress, which hides the others, {shares[1]}.",
        f"* Decoding from such heads takes {_ratios(heads, 'decode_ratio')} of the full cache's "
        "time.",
        f"* `kvzip`'s prefill takes {_ratios(twice, 'prefill_ratio')} times the stock one, and "
        f"{peak[0]} MB against {peak[1]} at its peak.",
        "* Methods know which tokens are visual, in batches, chunks, beams and later turns, and "
        "work in vLLM, too.",
        "* No better: where all heads keep equal numbers, decoding takes "
        f"{_ratios(plain, 'decode_ratio')} (`keydiff`).",
    ]
    setting = (
        f"SmolLM2-135M, {found['tokens']:,} tokens, 20 % kept, 2 threads of a CPU, against kvpress "
        "0.5.5 ([peers.md](benchmarks/results/peers.md)):"
    )
    return "\n".join([filled(setting), "", *(_item(line) for line in lines)])


def _ratios(rows: tuple[dict[str, Any], dict[str, Any]], name: str) -> str:
    ours, theirs = (f"{row[name]:.2f}" for row in rows)
    return f"{ours} against {theirs}"


def _item(text: str) -> str:
    return fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def answers() -> str:
    """Return one row per kind of question to the demo model."""
    rows = ["| question about | right, of | 95 % interval | without images |", "|---|---|---|---|"]
    blind = _results("blind")
    for kind, found in _results("answers").items():
        low, high = found["interval"]
        share, without = (f"{x['right'] / x['count']:.2f}" for x in (found, blind[kind]))
        rows.append(
            f"| {kind} | {share}, of {found['count']} | {low:.2f} to {high:.2f} | {without} |"
        )
    return "\n".join(rows)


def compared() -> str:
    """Return one row per method measured on the demo model, with a column per budget."""
    found = {(row["method"], row["budget"]): row for row in _results("methods")}
    full = found.pop(("full", "100%"))
    budgets = list(dict.fromkeys(budget for _, budget in found))
    rows = [
        f"| method | {' | '.join(f'{budget} kept' for budget in budgets)} |",
        f"|---|{'---|' * len(budgets)}",
        f"| full cache, of {full['count']}: {_share(full)} |{' |' * len(budgets)}",
    ]
    for method in dict.fromkeys(method for method, _ in found):
        cells = " | ".join(_share(found[method, budget]) for budget in budgets)
        rows.append(f"| `{method}` | {cells} |")
    return "\n".join(rows)


def which() -> str:
    """Return a table for each protocol."""
    found = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())
    lines: list[str] = []
    for protocol, results in found["claims"].items():
        names = " and ".join(dict.fromkeys(cell["task"] for cell in results["cells"]))
        lines += [f"{protocol.capitalize()}, over {names}:", "", *_best_first(results), ""]
    return "\n".join(lines[:-1])


def _best_first(results: dict[str, Any]) -> list[str]:
    """Return one row per method: its score per budget, over tasks that tell methods apart there."""
    scores: dict[str, dict[str, list[float]]] = {}
    for cell in results["cells"]:
        method, budget = named(cell["spec"])
        if budget not in results["blind"][cell["task"]]:
            scores.setdefault(method, {}).setdefault(budget, []).append(cell["score"][0])
    table = {method: {b: mean(of) for b, of in row.items()} for method, row in scores.items()}
    full = table.pop("full")[""]
    columns = list(dict.fromkeys(budget for row in table.values() for budget in row))
    best = {c: max(row[c] for name, row in table.items() if name != "oracle") for c in columns}
    rows = [f"| full cache: {full:.2f} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name, row in sorted(table.items(), key=lambda item: -sum(item[1].values())):
        cells = [
            f"**{row[c]:.2f}**" if row[c] == best[c] and name != "oracle" else f"{row[c]:.2f}"
            for c in columns
        ]
        rows.append(f"| `{without_folders(name)}` | {' | '.join(cells)} |")
    return rows


def tasks() -> str:
    """Return one row per task that Foveate brings along."""
    own = [task for task in TASKS.values() if _drawn_by(task).startswith("foveate_lab.")]
    rows = [f"| `{task.name}` | {task.summary} |" for task in own]
    return "\n".join(["| task | what is asked |", "|---|---|", *rows])


def _drawn_by(task: Task) -> str:
    """Return the module of the function that draws a task's samples."""
    draw: Any = task.samples
    return str(draw.__module__)


def benchmarks() -> str:
    """Return one row per benchmark, with its data set; :func:`forms` lists the sets' forms."""
    rows = [f"| `{b.name}` | {b.summary} | `{b.data}` |" for b in BENCHMARKS.values()]
    head = "| `NAME=FOLDER` | what is asked | the folder is of |"
    return "\n".join([head, "|---|---|---|", *rows])


def forms() -> str:
    """Return one row per form of each data set; data of several benchmarks share a row."""
    rows: dict[tuple[str, str], str] = {}
    for benchmark in BENCHMARKS.values():
        data = benchmark.data
        several = sum(other.data == data for other in BENCHMARKS.values()) > 1
        for parts in benchmark.parts().values():
            for form in parts.sources:
                publisher, contents = form.publisher, form.contents
                if several:
                    contents = FAMILIES.get((data, publisher), contents)
                rows.setdefault((data, f"{publisher}: {contents}"), f"<{form.address}>")
    lines = [f"| `{data}` | {what} | {where} |" for (data, what), where in rows.items()]
    return "\n".join(["| data | published by: the folder holds | from |", "|---|---|---|", *lines])


FAMILIES = {
    ("longbench", "the authors"): "data/SET.jsonl (or SET.jsonl) and config/dataset2prompt.json",
    ("loogle", "the authors"): "LooGLE-testdata/SET.jsonl (or data/, as data.zip had them) and "
    "config/task2prompt.json: a document a line",
    ("loogle", "bigai-nlco"): "data/SET.jsonl of bigai-nlco/LooGLE, and config/task2prompt.json of "
    "the authors' repository: a question a line",
    ("ovo_bench", "the authors"): "ovo_bench_new.json and chunked_videos/ or src_videos/",
    (
        "streaming_bench",
        "mjuicem",
    ): "SET.csv (or StreamingBench/ with it) of mjuicem/StreamingBench, "
    "and data/real/ or data/omni/ (or the archives' own folders) with sample_N/video.mp4",
    ("streaming_bench", "the authors"): "questions_real.json or questions_omni.json (or src/data/ "
    "with them) and videos/ beside them",
    ("milebench", "the authors"): "SET/SET.json and SET/images/, from all archives, there or in "
    "MileBench/",
}


def _share(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['right'] / row['count']:.2f} ({low:.2f} to {high:.2f})"


def _results(name: str) -> Any:
    return json.loads((ROOT / "demo_model" / "training" / "results" / f"{name}.json").read_text())


TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {
        "scans": with_origin("scans", scans.lead),
        "kept": with_origin("kept", kept),
        "speed": with_origin("speed", speed),
        "peers": with_origin("peers", peers),
        "models": lambda: filled(models.supported()),
    },
    ROOT / "docs" / "index.md": {"landing": landing},
    ROOT / "docs" / "methods.md": {"methods": methods},
    ROOT / "docs" / "howto" / "pruning.md": {"one_budget": one_budget, "prunes": prunes},
    ROOT / "docs" / "coming_from_kvpress.md": {"presses": kvpress_names.table},
    ROOT / "docs" / "serving.md": {"options": models.options},
    ROOT / "docs" / "served_methods.md": {
        "plain": served.as_they_are,
        "given": served.with_arguments,
        "profiled": served.with_profiles,
        "refused": served.refused,
    },
    ROOT / "docs" / "models.md": {
        "releases": models.releases,
        "exact": models.exact,
        "others": models.others,
        "ways": models.ways,
    },
    ROOT / "docs" / "which_method.md": {"choice": scans.choice},
    ROOT / "docs" / "quality.md": {
        "scans_aware": with_origin("scans_aware", partial(scans.table, "query-aware")),
        "scans_agnostic": with_origin("scans_agnostic", partial(scans.table, "query-agnostic")),
        "measured": leaderboard.measured,
        "aware": with_origin("aware", partial(leaderboard.table, "query-aware")),
        "agnostic": with_origin("agnostic", partial(leaderboard.table, "query-agnostic")),
        "board_aware": with_origin("board_aware", partial(leaderboard.with_power, "query-aware")),
        "board_agnostic": with_origin(
            "board_agnostic", partial(leaderboard.with_power, "query-agnostic")
        ),
        "which": with_origin("which", which),
        "refused": leaderboard.refused,
    },
    ROOT / "docs" / "evaluation.md": {"tasks": tasks},
    ROOT / "docs" / "benchmarks.md": {"benchmarks": benchmarks, "forms": forms},
    ROOT / "docs" / "reproduce.md": {
        "experiments": experiments.experiments,
        "facts": experiments.facts,
    },
    ROOT / "docs" / "stages.md": {
        "ranges": ranges,
        "parts": combinations.parts,
        "pairs": combinations.table,
    },
    ROOT / "docs" / "defaults.md": {"defaults": defaults.table},
    ROOT / "docs" / "design.md": {"house": house.facts, "way": way.drawing},
    **{
        ROOT / "docs" / "papers" / f"{name}.md": {
            "equations": partial(equations.table, name),
            "differences": partial(differences.listed, name),
        }
        for name in equations.EQUATIONS
    },
    ROOT / "tests" / "README.md": {"map": tested_by.table},
    ROOT / "demo_model/foveate_demo/weights/MODEL_CARD.md": {
        "answers": answers,
        "compared": compared,
    },
}
PICTURES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "quality.svg": leaderboard_picture.picture,
    ROOT / "docs" / "house.svg": house.picture,
}


def written(path: Path) -> str:
    """Return a file's text with new tables between its markers, or a picture's new text."""
    if path in PICTURES:
        return f"{PICTURES[path]()}\n"
    text = path.read_text(encoding="utf-8")
    for name, table in TABLES[path].items():
        before, rest = text.split(f"<!-- {name} -->")
        _, after = rest.split(f"<!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{table()}\n<!-- /{name} -->{after}"
    return text


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> int:
    """Rewrite the files, or with --check print those that are out of date."""
    texts = {path: written(path) for path in (*TABLES, *PICTURES)}
    old = [path for path, text in texts.items() if _read(path) != text]
    if "--check" not in sys.argv:
        for path in old:
            path.write_text(texts[path], encoding="utf-8")
        return 0
    for path in old:
        print(f"{path.relative_to(ROOT)} is out of date: run python docs/scripts/tables.py")
    return 1 if old else 0


if __name__ == "__main__":
    raise SystemExit(main())
